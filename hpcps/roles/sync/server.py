"""The server of the synchronous protocol."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hpcps.aggregation.rule_state import RuleState
from hpcps.errors import RunError
from hpcps.numerics.state import State
from hpcps.numerics.vectors import on_host
from hpcps.protocol.messages import (
    Absent,
    Closed,
    CombinedUpdate,
    Complete,
    EndWait,
    EvaluationRecorded,
    Flag,
    InitialModel,
    Message,
    ModelPartition,
    PartWritten,
    Peer,
    RunEnds,
    Serve,
    StepsQuery,
    Update,
    WriteCheckpoint,
)
from hpcps.protocol.received import Lost, Malformed, Received, Reduced, Replaced
from hpcps.protocol.roster import SERVER_0, Roster
from hpcps.roles.checkpointing import CheckpointParts, dismissal, report
from hpcps.roles.checks import rejection, wrong_size
from hpcps.roles.events import (
    Compute,
    Computed,
    Effect,
    Event,
    Finish,
    Idle,
    Record,
    Resumed,
    Save,
    Send,
    SetDeadline,
    Snapped,
    Snapshot,
    Start,
    StopRequested,
)
from hpcps.roles.losses import admit
from hpcps.roles.messaging_role import MessagingRole
from hpcps.roles.queries import QueryAnswers
from hpcps.roles.resources import ALONE, Resources
from hpcps.roles.stages import SYNC_SERVER, Stage, StageMachine, Trigger
from hpcps.roles.sync.announcements import Announcements
from hpcps.roles.sync.partitions import PartitionCollector, credits
from hpcps.roles.sync.quorum import QuorumCollector
from hpcps.roles.sync.readers import readers_of
from hpcps.roles.sync.shard import Slice, SyncShard
from hpcps.roles.weights import ALIKE, UpdateWeights
from hpcps.rules import Average, Rule
from hpcps.spec.schema import Run


@dataclass(frozen=True)
class _Known:
    """What a server knows once it has the initial model."""

    shard: SyncShard
    collector: PartitionCollector
    announcements: Announcements


class SyncServer(MessagingRole):
    """Keeps a shard of the global model: adds the mean of the validators' combined updates, round by round.

    Without validators it combines its shard of the workers' updates itself. It sends every partition of the next model
    to all readers as soon as the partition is made, or after the checkpoint of the round if there is one.
    """

    def __init__(self, peer: Peer, run: Run, resources: Resources = ALONE, weights: UpdateWeights = ALIKE) -> None:
        super().__init__(peer, run)
        self.round = 0
        self._resources = resources
        self._roster = Roster.of(run)
        validators = self._roster.all_validators()
        rule = Average() if validators else run.validation.rule
        assert isinstance(rule, Rule), "the specification has been checked"
        self._rule = rule
        self._rule_state = RuleState(rule, run.seed, peer)
        policy = run.train.policy
        self._answers = QueryAnswers(run, policy) if policy and peer == SERVER_0 else None
        self._weights = weights
        if self._answers is not None and run.validation.weights == "steps":
            self._weights = replace(weights, steps=self._answers.steps_of)
        self._senders = validators or self._roster.share(peer)
        self._takes = (CombinedUpdate,) if validators else (Update, Absent)
        self._readers = readers_of(run, 0)
        self._known: _Known | None = None
        self._stages = StageMachine(SYNC_SERVER)
        self._diverged = False
        self._without_wait = -1  # the last round that waits for no replacements
        self._now = 0.0
        self._early: list[Event] = []  # before the initial model
        # The rounds that server 0 has closed, and this server has not.
        self._ahead: deque[Closed] = deque()
        # With `survive.validators`: the first partitions that validators have sent in this round, and the validators
        # whose combined updates are in the model of the next one.
        self._said: dict[Peer, CombinedUpdate] = {}
        self._combined_of: list[int] = []
        # If the coordinator may be lost: the epochs whose evaluations are recorded, and a replacement of it that gets
        # the last model only.
        self._evaluated = 0
        self._substitute: Replaced | None = None
        self._checkpoint = CheckpointParts(self._roster, dismissal(run, Flag.SUSPEND))

    @property
    def keeps_checkpoints(self) -> bool:
        """Server 0 does."""
        return self.peer == SERVER_0

    def handle(self, event: Event) -> Iterator[Effect]:
        answers = self._answers if self._known is not None else None
        if not isinstance(event, (Reduced, Idle, StopRequested)):
            self._now = event.arrived
        match event:
            case Start() if self._known is not None:
                yield from self._resume(self._known)
            case Start():
                yield SetDeadline((self._roster.coordinator,))
            case Received(source, StepsQuery() as query, time) if answers and source in answers.roles:
                yield from answers.query(source, query, self.round, time)
            case Malformed(source, reason) if answers and answers.takes_steps(source):
                yield from answers.excuse(source, reason, self.round)
            case Received(source, message):
                yield from self._receive(source, message, event.arrived)
            case Malformed(source, reason):
                yield from self._refuse(source, reason, event.arrived)
            case Resumed():
                assert self._known is not None, "it has the initial model"
                self._known.collector.elapsed(self.round)
                yield from self._combine_when_ready(self._known)
            case Computed():
                assert self._known is not None, "it has the initial model"
                yield from self._combined(self._known)
            case Replaced() if self.peer != SERVER_0:
                pass  # the record says from which message on a process is a replacement; server 0 decides
            case Replaced(peer) if self._known is None and peer == self._roster.coordinator:
                self._early = [each for each in self._early if not isinstance(each, Lost) or each.peer != peer]
                yield from admit(event, 0, None)
            case Lost() | Replaced() if self._known is None:
                self._early.append(event)
            case Lost() | Replaced():
                assert self._known is not None, "it has the initial model"
                yield from self._note_member(self._known, event)
            case StopRequested():
                self._checkpoint.stop(event)
            case Snapped():
                yield from self._snapped(event)
        if self._known is not None and self._checkpoint.wanted and self._run.survive.workers:
            yield from self._end_wait(self._known)

    def _note_member(self, known: _Known, event: Lost | Replaced) -> Iterator[Effect]:
        """Go on without a lost worker or validator, or with its replacement; validators decide on their workers."""
        if isinstance(event, Lost) and event.peer.role == "worker":
            self._readers.lose(event.peer)
        if event.peer == self._roster.coordinator:
            closed = isinstance(known.collector, QuorumCollector) and known.collector.closing is not None
            # No round begins any more whose model it could get; it gets the last model.
            late = self._stages.stage is Stage.STOPPING or (closed and known.announcements.over(self.round + 1))
            self._substitute = event if isinstance(event, Replaced) and late else None
        if self._stages.stage is Stage.STOPPING and isinstance(event, Replaced):
            yield from self._admit_substitute(known)
        elif isinstance(known.collector, QuorumCollector):
            evaluated = self._evaluated if event.peer == self._roster.coordinator else 0
            yield from known.collector.note_member(event, self.round, known.announcements.over_before, evaluated)
            yield from self._combine_when_ready(known)
        if isinstance(event, Lost):  # last, because it may end the run
            yield from self._checkpoint.lose(event.peer)

    def _end_wait(self, known: _Known) -> Iterator[Effect]:
        """Have the round wait for no replacements, if the model of the next one can announce the checkpoint."""
        # One that is under way, other than at the end of this round, is soon complete.
        announces = self._checkpoint.open in (None, self.round + 1) and not known.announcements.over(self.round + 2)
        told = self._without_wait == self.round or Flag.SUSPEND in known.announcements.flags
        if told or not announces or self._stages.stage not in (Stage.GATHERING, Stage.COMBINING):
            return
        self._without_wait = self.round
        for validator in self._readers.validators:
            yield Send(Peer("validator", validator), EndWait(round=self.round))
        if isinstance(known.collector, QuorumCollector):
            known.collector.end_wait(self.round)
            yield from self._combine_when_ready(known)

    def _receive(self, source: Peer, message: Message, arrived: float) -> Iterator[Effect]:
        if self._known is None and self._run.survives_coordinator and not isinstance(message, InitialModel):
            self._early.append(Received(source, message, arrived=arrived))  # server 0 may be ahead
            return
        if self._known is None:
            yield from self._initialise(source, message)
            return
        collector = self._known.collector
        if isinstance(message, RunEnds) and source == SERVER_0 and self._known.announcements.learn_end(message):
            if self.round == message.round and self._stages.stage is Stage.GATHERING:
                yield from self._begin_round(self._known)
        elif isinstance(message, PartWritten) and self.keeps_checkpoints:
            yield from self._checkpoint.take(source, message)
        elif isinstance(message, self._takes) and source in self._senders:
            yield from collector.put(source, message, self.round, arrived)
            if message.round == self.round:
                self._known.announcements.hear(message.flags)
                if isinstance(message, CombinedUpdate) and self._run.survive.validators:
                    self._said.setdefault(source, message)  # it counts only if the round closes with it
                elif isinstance(message, CombinedUpdate):
                    self._readers.learn(message.answered or (), message.lost)
            yield from self._combine_when_ready(self._known)
        elif isinstance(message, Complete) and source.role == "server" and isinstance(collector, QuorumCollector):
            collector.note_complete(source, message)
            yield from self._combine_when_ready(self._known)
        elif isinstance(message, Closed) and source == SERVER_0 and isinstance(collector, QuorumCollector):
            if self._stages.stage is Stage.STOPPING:
                yield from self._give_again(self._known)
                return
            self._ahead.append(message)
            yield from self._combine_when_ready(self._known)
        elif isinstance(message, EvaluationRecorded) and source in (self._roster.coordinator, SERVER_0):
            self._evaluated = max(self._evaluated, message.epoch)
            for server in self._roster.all_servers()[1:] if self.peer == SERVER_0 else ():
                yield Send(server, message)
            if self._stages.stage is Stage.STOPPING:
                yield from self._finish_when_evaluated(self._known)
        elif isinstance(message, InitialModel) and self._run.survives_coordinator:
            if self.round == 0:  # it replaces a lost coordinator, which got the model of this round from here
                yield from self._give_again(self._known)
        else:
            yield from self._refuse(source, f"a server gets no {message.kind} from {source}", arrived)

    def _refuse(self, source: Peer, reason: str, arrived: float) -> Iterator[Effect]:
        """Count a bad message as an empty update, so that the run goes on."""
        if self._known is None:
            yield rejection(source, reason)
        else:
            yield from self._known.collector.refuse(source, reason, arrived=arrived)
            yield from self._combine_when_ready(self._known)

    def _initialise(self, source: Peer, message: Message) -> Iterator[Effect]:
        """Take the initial weights from the coordinator and begin."""
        if source != self._roster.coordinator or not isinstance(message, InitialModel):
            expected = f"waits for the initial model from {self._roster.coordinator}"
            raise RunError(f"{self.peer} {expected}; {source} sent {message.kind}")
        known = self._know(message.layout, message.steps_per_epoch, message.statistics)
        reason = wrong_size(message.values, known.shard.size)
        if reason:
            raise RunError(f"{self.peer} cannot use the initial model that {source} sent: {reason}")
        known.shard.begin(message.values)
        yield from self._publish(known)
        early, self._early = self._early, []
        for event in early:
            yield from self.handle(event)

    def _know(self, table: list[list[Any]], steps_per_epoch: int, statistics: bool) -> _Known:
        """Learn the model's layout and the schedule of the run."""
        shard = SyncShard(self.peer, self._run, table, self._resources)
        senders, partitions, first = self._senders, shard.partitions, shard.first_block
        collector = PartitionCollector(senders, partitions, first, shard.decoder)
        if self._run.misses_rounds and (not self._roster.validators or self._run.survive.validators):
            collector = QuorumCollector(self.peer, self._run, senders, partitions, first, shard.decoder)
        checkpoint = self._checkpoint if self.keeps_checkpoints else None
        announcements = Announcements(self._run, steps_per_epoch, statistics, checkpoint, self._answers)
        self._known = _Known(shard, collector, announcements)
        return self._known

    def state(self) -> State:
        """Return the model of the round that begins, and what the coordinator said in INIT."""
        assert self._known is not None, "there is no checkpoint before the first round"
        facts = {
            "round": self.round,
            "layout": self._known.shard.table,
            "diverged": self._diverged,
            **self._known.announcements.facts(self.round),
        }
        shard = self._known.shard
        models = {"model": on_host(shard.now.model)} | ({} if shard.encoder is None else {"held": shard.now.held})
        kept = {"rule": self._rule_state, **shard.kept} | ({} if self._answers is None else {"counter": self._answers})
        parts = {name: each.state() for name, each in kept.items()}
        if self._run.misses_rounds:
            parts["readers"] = self._readers.state(self.round, self._now)
        parts |= {name: each.state() for name, each in self._known.collector.kept.items()}
        if self._run.survives_coordinator:
            facts["evaluated"] = self._evaluated
        return State(models, facts).having(**parts)

    def restore(self, state: State) -> None:
        """Go on with the round that began at the checkpoint."""
        facts = state.facts
        known = self._know(facts["layout"], facts["steps_per_epoch"], facts["statistics"])
        known.shard.begin(state.arrays["model"], state.arrays.get("held"))
        self.round, self._diverged = facts["round"], facts["diverged"]
        self._evaluated = facts.get("evaluated", 0)
        self._readers = readers_of(self._run, self.round)
        if "readers" in facts:  # a checkpoint of an earlier version waits for all workers
            self._readers.restore(state.part("readers"))
        known.collector.begin(self.round)
        self._rule_state.restore(state.part("rule"))
        for name, each in {**known.shard.kept, **known.collector.kept}.items():
            if name in facts:  # not in a checkpoint of an earlier version
                each.restore(state.part(name))
        known.announcements.resume(self.round, facts["epochs"])
        if self._answers is not None:
            self._answers.restore(state.part("counter"))

    def _resume(self, known: _Known) -> Iterator[Effect]:
        """Send the model with which the run resumes; have late workers send the answers that they owe."""
        self._readers.resume(self._now)
        yield from self._publish(known)
        if self.keeps_checkpoints:
            yield from self._readers.owing(self.round, self._now)

    def _snapped(self, event: Snapped) -> Iterator[Effect]:
        """Report that this server's part is written; go on, or end."""
        assert self._known is not None, "it has the initial model"
        if self.keeps_checkpoints:
            yield SetDeadline(tuple(peer for peer in self._checkpoint.missing() if peer != self.peer))
            yield from self._checkpoint.enter(self.peer, event.position, event.checksum)
        else:
            yield report(event)
        if self._stages.stage is not Stage.SUSPENDING:
            yield from self._publish(self._known)
        elif not self.keeps_checkpoints:
            yield Finish(suspended=True)

    def _publish(self, known: _Known) -> Iterator[Effect]:
        """Send the whole model of this round."""
        known.announcements.announce(self.round, self._readers.absent)
        readers = tuple(reader for reader in self._roster.readers() if self._readers.have(reader, self.round))
        for number in range(len(known.shard.partitions)):
            yield from self._give(known, number, known.shard.now, self.round, readers, whole=True)
        if self.round:  # after a checkpoint, whose time belongs to the round that made the model
            yield Record("published", {"round": self.round - 1})
        yield from self._begin_round(known)

    def _give(
        self, known: _Known, number: int, given: Slice, round: int, readers: Sequence[Peer], *, whole: bool = False
    ) -> Iterator[Effect]:
        """Send a partition of a round's model: encoded to readers that have the previous model, unless `whole`."""
        self._readers.give(round, self._now)
        payload = given.held[known.shard.partitions[number].columns]
        model = ModelPartition(
            round=round, shard=self.peer.index, partition=number, flags=known.announcements.flags,
            epoch=known.announcements.epoch(round), progress=known.announcements.progress(),
            validators=self._validators(), workers=self._workers(readers), values=payload,
        )  # fmt: skip
        encoded = model
        if number in given.codes and not whole:
            encoded = replace(model, flags=model.flags | Flag.DIFFERENCE, values=given.codes[number])
        for reader in readers:
            yield Send(reader, encoded if self._readers.have(reader, round - 1) else model)

    def _validators(self) -> tuple[int, ...] | None:
        """Return `ModelPartition.validators`."""
        return self._readers.validators if self._run.survive.validators and self.peer == SERVER_0 else None

    def _workers(self, readers: Sequence[Peer]) -> tuple[int, ...] | None:
        """Return `ModelPartition.workers`."""
        if not self._run.shares_batches or self.peer != SERVER_0:
            return None
        return tuple(sorted(reader.index for reader in readers if reader.role == "worker"))

    def _finish_when_evaluated(self, known: _Known) -> Iterator[Effect]:
        """End; first wait for the last evaluation, because the replacement of the coordinator may need the model."""
        if self._run.survives_coordinator and self._evaluated < self._run.train.epochs:
            if self._stages.stage is not Stage.STOPPING:
                self._stages.on(Trigger.EVALUATION_DUE)
            yield SetDeadline((self._roster.coordinator,))
            yield from self._admit_substitute(known)
            if self._ahead:
                self._ahead.clear()
                yield from self._give_again(known)
            return
        self._stages.on(Trigger.ROUNDS_OVER)
        yield Save(f"final/{self.peer}", on_host(known.shard.now.held))
        if self.keeps_checkpoints:
            yield from dismissal(self._run, Flag.NONE)
        yield Finish()

    def _admit_substitute(self, known: _Known) -> Iterator[Effect]:
        """Have a replacement of the coordinator evaluate the last model; nobody else needs that."""
        replaced, self._substitute = self._substitute, None
        if replaced is not None:
            closed = Closed(round=self.round, arrived=(), answered=(replaced.peer.index,), everyone=False)
            for server in self._roster.all_servers()[1:]:
                yield Send(server, closed)
            assert isinstance(known.collector, QuorumCollector), "the coordinator may be lost"
            yield from admit(replaced, self.round, known.collector.positions.of(replaced.peer), self._evaluated)
            yield from self._give_again(known)

    def _give_again(self, known: _Known) -> Iterator[Effect]:
        """Send the model of this round to a replacement of the coordinator."""
        readers = (self._roster.coordinator,)
        for number in range(len(known.shard.partitions)):
            yield from self._give(known, number, known.shard.now, self.round, readers, whole=True)

    def _begin_round(self, known: _Known) -> Iterator[Effect]:
        """Wait for the answers to the model that was sent; end if it was the last."""
        known.announcements.begin_round()
        if known.announcements.over(self.round):
            yield from known.announcements.tell_end(self.round)
            yield from self._finish_when_evaluated(known)
        else:
            starting = self._stages.stage is Stage.STARTING
            self._stages.on(Trigger.INITIAL_MODEL if starting else Trigger.ROUND_BEGINS)
            yield from self._combine_when_ready(known)

    def _combine_when_ready(self, known: _Known) -> Iterator[Effect]:
        if self._stages.stage not in (Stage.GATHERING, Stage.COMBINING):
            return  # its readers have not got the model of the round
        yield from known.collector.close(self.round, known.announcements.flags)
        if isinstance(known.collector, QuorumCollector) and self._ahead and self._ahead[0].round == self.round:
            closed = self._ahead.popleft()
            known.announcements.hear(closed.flags)
            yield from known.collector.follow(closed)
        if self._stages.stage is Stage.GATHERING:
            yield SetDeadline(known.collector.waiting_for)
            if known.collector.ready:
                self._stages.on(Trigger.UPDATES_COMPLETE)
                combine = partial(known.shard.combine, known.collector, self._rule, self._rule_state, self._weights)
                yield Compute("combine", combine, elements=known.collector.elements)

    def _combined(self, known: _Known) -> Iterator[Effect]:
        """Send the new partition of the next model, unless a checkpoint comes first; go on."""
        self._stages.on(Trigger.COMBINED)
        collector, round, done = known.collector, self.round, known.collector.current
        snapshot = Flag.SNAPSHOT in known.announcements.heard
        if snapshot:  # else the partition of the next model is the credit
            yield from credits(done, collector.total, collector.updates(round))
        if done == 1 and isinstance(collector, QuorumCollector):
            yield from self._learn(collector, last=known.announcements.over(round + 1))
        if done == 1 and not snapshot:
            known.announcements.announce(round + 1, self._readers.absent)
        if not snapshot:  # before the record of this round is written, so that the readers go on meanwhile
            readers = self._readers.among(self._roster.readers())
            yield from self._give(known, done - 1, known.shard.coming, round + 1, readers)
        if not collector.done:
            yield from self._combine_when_ready(known)
            return
        if snapshot and self.keeps_checkpoints:
            for worker in self._readers.late(round):
                yield Send(worker, WriteCheckpoint(position=round + 1, flags=known.announcements.heard))
        yield from self._end_round(known)
        if snapshot:
            self._stages.on(
                Trigger.SUSPENSION_DUE if Flag.SUSPEND in known.announcements.heard else Trigger.CHECKPOINT_DUE
            )
            yield Snapshot(self.round, self.state())
        else:
            yield from self._begin_round(known)

    def _learn(self, collector: QuorumCollector, *, last: bool) -> Iterator[Effect]:
        """Learn, from how the round was closed, who gets the next model, which may be the last one."""
        closed = collector.closing
        assert closed is not None, "a round is closed before it is combined"
        if not self._run.survive.validators:
            self._readers.learn(closed.answered, closed.lost)
            return
        for index in closed.arrived:
            said = self._said.get(Peer("validator", index))
            if said is not None:  # else its message could not be used
                self._readers.learn(said.answered or (), said.lost)
                collector.positions.learn(said.positions or {})
        self._said.clear()
        self._combined_of = list(closed.arrived)
        handed = self._readers.hand_over(closed, last=last)
        if self.peer == SERVER_0:
            known = collector.positions.counted
            for validator, workers in handed.items():
                names = [str(Peer("worker", k)) for k in workers]
                positions = {name: known[name] for name in names if name in known}
                yield Send(Peer("validator", validator), Serve(round=self.round + 1, positions=positions))

    def _end_round(self, known: _Known) -> Iterator[Effect]:
        """Record the round, all of whose partitions are combined."""
        fields, rejections = known.collector.report()
        yield from rejections
        counted = known.announcements.round_fields()
        stepped = {} if known.shard.stepper is None else known.shard.stepper.turn()
        if self._run.survive.validators:
            fields = {"validators": self._combined_of}
        elif self._roster.validators:
            fields = {}
        yield Record("round", fields | counted | stepped)
        if not self._diverged and not known.shard.finite:
            self._diverged = True
            yield Record("diverged", {"what": "the model is not finite"})
        known.collector.clear()
        self.round += 1
        known.shard.turn(self.round, self._readers.turn(self.round))
