"""The server of the synchronous protocol."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from hpcps.aggregation.rule_state import RuleState
from hpcps.attacks import NoAttack
from hpcps.errors import RunError
from hpcps.numerics.state import State
from hpcps.numerics.vectors import on_host
from hpcps.protocol.messages import (
    Absent,
    Closed,
    CombinedUpdate,
    Flag,
    InitialModel,
    Message,
    ModelPartition,
    PartWritten,
    Peer,
    RunEnds,
    StepsQuery,
    Update,
    WriteCheckpoint,
)
from hpcps.protocol.received import Malformed, Received, Reduced
from hpcps.protocol.roster import SERVER_0, Roster
from hpcps.protocol.schedule import OpenSchedule, Schedule, schedule_of_rounds
from hpcps.roles.checkpointing import CHECKPOINT_FLAGS, CheckpointParts, periodic, report
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
from hpcps.roles.messaging_role import MessagingRole
from hpcps.roles.queries import QueryAnswers
from hpcps.roles.resources import ALONE, Resources
from hpcps.roles.stages import SYNC_SERVER, Stage, StageMachine, Trigger
from hpcps.roles.sync.partitions import PartitionCollector, credits
from hpcps.roles.sync.quorum import QuorumCollector
from hpcps.roles.sync.readers import readers_of
from hpcps.roles.sync.shard import Slice, SyncShard
from hpcps.rules import Average, Rule
from hpcps.spec.schema import Run


@dataclass(frozen=True)
class _Part:
    """What a server knows once it has the initial model."""

    shard: SyncShard
    schedule: Schedule | OpenSchedule
    collector: PartitionCollector
    steps_per_epoch: int
    statistics: bool


class SyncServer(MessagingRole):
    """Keeps a shard of the global model: adds the mean of the validators' combined updates, round by round.

    Without validators it combines its shard of the workers' updates itself. It sends every partition of the next model
    to all readers as soon as the partition is made, or after the checkpoint of the round if there is one.
    """

    def __init__(self, peer: Peer, run: Run, resources: Resources = ALONE) -> None:
        super().__init__(peer, run)
        self.round = 0
        self._resources = resources
        self._roster = Roster.of(run)
        validators = tuple(Peer("validator", v) for v in range(run.topology.validators))
        rule = Average() if validators else run.validation.rule
        assert isinstance(rule, Rule), "the specification has been checked"
        self._rule = rule
        self._rule_state = RuleState(rule, run.seed, peer)
        policy = run.train.policy
        self._answers = QueryAnswers(run, policy) if policy and peer == SERVER_0 else None
        self._tells_epoch = policy is None and not isinstance(run.attack, NoAttack) and run.attack.from_epoch > 0
        self._senders = validators or self._roster.share(peer)
        self._takes = (CombinedUpdate,) if validators else (Update, Absent)
        self._readers = readers_of(run, 0)
        self._part: _Part | None = None
        self._stages = StageMachine(SYNC_SERVER)
        self._diverged = self._due = False
        self._now = 0.0
        self._checkpoint = CheckpointParts(self._roster)
        # What the models of this round, of this server and of the checkpoint coordinator, said of checkpoints; and what
        # the next model says.
        self._flags = self._announced = Flag.NONE

    @property
    def keeps_checkpoints(self) -> bool:
        """Server 0 does."""
        return self.peer == SERVER_0

    def handle(self, event: Event) -> Iterator[Effect]:
        answers = self._answers if self._part is not None else None
        if not isinstance(event, (Reduced, Idle, StopRequested)):
            self._now = event.arrived
        match event:
            case Start() if self._part is not None:
                yield from self._resume(self._part)
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
                assert self._part is not None, "it has the initial model"
                self._part.collector.elapsed(self.round)
                yield from self._combine_when_ready(self._part)
            case Computed():
                assert self._part is not None, "it has the initial model"
                yield from self._combined(self._part)
            case StopRequested():
                self._checkpoint.wanted = True
            case Snapped():
                yield from self._snapped(event)

    def _receive(self, source: Peer, message: Message, arrived: float) -> Iterator[Effect]:
        if self._part is None:
            yield from self._initialise(source, message)
        elif isinstance(message, RunEnds) and source == SERVER_0 and isinstance(self._part.schedule, OpenSchedule):
            self._part.schedule.learn(message.round, self._run.train.epochs)
            if self.round == message.round and self._stages.stage is Stage.GATHERING:
                yield from self._begin_round(self._part)
        elif isinstance(message, PartWritten) and self.keeps_checkpoints:
            yield from self._checkpoint.take(source, message)
        elif isinstance(message, self._takes) and source in self._senders:
            yield from self._part.collector.put(source, message, self.round, arrived)
            if message.round == self.round:
                self._flags |= message.flags & CHECKPOINT_FLAGS
                if isinstance(message, CombinedUpdate):
                    self._readers.learn(message.answered or ())
            yield from self._combine_when_ready(self._part)
        elif isinstance(message, Closed) and source == SERVER_0 and isinstance(self._part.collector, QuorumCollector):
            yield from self._part.collector.follow(message)
            yield from self._combine_when_ready(self._part)
        else:
            yield from self._refuse(source, f"a server gets no {message.kind} from {source}", arrived)

    def _refuse(self, source: Peer, reason: str, arrived: float) -> Iterator[Effect]:
        """Count a bad message as an empty update, so that the run goes on."""
        if self._part is None:
            yield rejection(source, reason)
        else:
            yield from self._part.collector.refuse(source, reason, arrived=arrived)
            yield from self._combine_when_ready(self._part)

    def _initialise(self, source: Peer, message: Message) -> Iterator[Effect]:
        """Take the initial weights from the coordinator and begin."""
        if source != self._roster.coordinator or not isinstance(message, InitialModel):
            expected = f"waits for the initial model from {self._roster.coordinator}"
            raise RunError(f"{self.peer} {expected}; {source} sent {message.kind}")
        part = self._know(message.layout, message.steps_per_epoch, message.statistics)
        reason = wrong_size(message.values, part.shard.size)
        if reason:
            raise RunError(f"{self.peer} cannot use the initial model that {source} sent: {reason}")
        part.shard.begin(message.values)
        yield from self._publish(part)

    def _know(self, table: list[list[Any]], steps_per_epoch: int, statistics: bool) -> _Part:
        """Learn the model's layout and the schedule of the run."""
        shard = SyncShard(self.peer, self._run, table, self._resources)
        senders, partitions, first = self._senders, shard.partitions, shard.first_block
        collector = PartitionCollector(senders, partitions, first, shard.decoder)
        if self._run.has_quorum and not self._roster.validators:
            collector = QuorumCollector(self.peer, self._run, senders, partitions, first, shard.decoder)
        self._part = _Part(
            shard, schedule_of_rounds(self._run, steps_per_epoch), collector, steps_per_epoch, statistics
        )
        return self._part

    def state(self) -> State:
        """Return the model of the round that begins, and what the coordinator said in INIT."""
        assert self._part is not None, "there is no checkpoint before the first round"
        facts = {
            "round": self.round,
            "layout": self._part.shard.table,
            "steps_per_epoch": self._part.steps_per_epoch,
            "statistics": self._part.statistics,
            "diverged": self._diverged,
            "epochs": self._part.schedule.ended(self.round),
        }
        shard = self._part.shard
        models = {"model": on_host(shard.now.model)} | ({} if shard.encoder is None else {"held": shard.now.held})
        kept = {"rule": self._rule_state, **shard.kept} | ({} if self._answers is None else {"counter": self._answers})
        parts = {name: part.state() for name, part in kept.items()}
        if self._run.has_quorum:
            parts["readers"] = self._readers.state(self.round, self._now)
        if isinstance(self._part.collector, QuorumCollector):
            parts["quorum"] = self._part.collector.state()
        return State(models, facts).having(**parts)

    def restore(self, state: State) -> None:
        """Go on with the round that began at the checkpoint."""
        facts = state.facts
        part = self._know(facts["layout"], facts["steps_per_epoch"], facts["statistics"])
        part.shard.begin(state.arrays["model"], state.arrays.get("held"))
        self.round, self._diverged = facts["round"], facts["diverged"]
        self._readers = readers_of(self._run, self.round)
        if "readers" in facts:  # a checkpoint of an earlier version waits for all workers
            self._readers.restore(state.part("readers"))
        if isinstance(part.collector, QuorumCollector):
            part.collector.begin(self.round)
            if "quorum" in facts:
                part.collector.restore(state.part("quorum"))
        self._rule_state.restore(state.part("rule"))
        for name, each in part.shard.kept.items():
            if name in facts:  # not in a checkpoint of an earlier version
                each.restore(state.part(name))
        if isinstance(part.schedule, OpenSchedule):
            part.schedule.learn(self.round - 1, facts["epochs"])
        if self._answers is not None:
            self._answers.restore(state.part("counter"))

    def _resume(self, part: _Part) -> Iterator[Effect]:
        """Send the model with which the run resumes; have late workers send the answers that they owe."""
        self._readers.resume(self._now)
        yield from self._publish(part)
        if self.keeps_checkpoints:
            yield from self._readers.owing(self.round, self._now)

    def _snapped(self, event: Snapped) -> Iterator[Effect]:
        """Report that this server's part is written; go on, or end."""
        assert self._part is not None, "it has the initial model"
        if self.keeps_checkpoints:
            yield SetDeadline(tuple(peer for peer in self._checkpoint.missing() if peer != self.peer))
            yield from self._checkpoint.enter(self.peer, event.position, event.checksum)
        else:
            yield report(event)
        if self._stages.stage is not Stage.SUSPENDING:
            yield from self._publish(self._part)
        elif not self.keeps_checkpoints:
            yield Finish(suspended=True)

    def _announce(self, part: _Part, round: int) -> Flag:
        """Return the flags of the model of a round; the checkpoint coordinator alone decides on a checkpoint after it.

        With a quorum a late worker does not see the flags of a model. So the last round and one before the statistics
        of all workers wait for everyone. A checkpoint waits for nobody: late workers are told of it.

        Args:
            part: what the server knows.
            round: the round.
        """
        schedule, flags, next_round = part.schedule, Flag.NONE, round + 1
        if isinstance(schedule, OpenSchedule):
            if self._answers is not None:
                schedule.learn(round, self._answers.ended(part.steps_per_epoch))
            next_round = round  # how many epochs this round ends is not known
        measured_next = part.statistics and schedule.epochs_before(round + 1)
        if self._run.has_quorum and (schedule.over(round + 1) or measured_next):
            flags = Flag.EVERYONE
        if self.keeps_checkpoints and self._checkpoint.open is None and not schedule.over(next_round):
            every = self._run.checkpoint.every
            self._due |= periodic(every, schedule.ended(next_round - 1), schedule.ended(next_round))
            if self._due or self._checkpoint.wanted:
                flags, self._due = flags | self._checkpoint.begin(round + 1), False
        if schedule.over(round):
            flags |= Flag.LAST
        if part.statistics and schedule.epochs_before(round):
            flags |= Flag.STATISTICS
        return flags

    def _publish(self, part: _Part) -> Iterator[Effect]:
        """Send the whole model of this round."""
        self._announced = self._announce(part, self.round)
        readers = tuple(reader for reader in self._roster.readers() if self._readers.have(reader, self.round))
        for number in range(len(part.shard.partitions)):
            yield from self._give(part, number, part.shard.now, self.round, readers, whole=True)
        if self.round:  # after a checkpoint, whose time belongs to the round that made the model
            yield Record("published", {"round": self.round - 1})
        yield from self._begin_round(part)

    def _give(
        self, part: _Part, number: int, given: Slice, round: int, readers: Sequence[Peer], *, whole: bool = False
    ) -> Iterator[Effect]:
        """Send a partition of a round's model: encoded to readers that have the previous model, unless `whole`."""
        self._readers.give(round, self._now)
        payload = given.held[part.shard.partitions[number].columns]
        model = ModelPartition(
            round=round, shard=self.peer.index, partition=number, flags=self._announced,
            epoch=part.schedule.ended(round) if self._tells_epoch or self._answers else None,
            progress=self._answers.progress(part.steps_per_epoch) if self._answers else None, values=payload,
        )  # fmt: skip
        encoded = model
        if number in given.codes and not whole:
            encoded = replace(model, flags=model.flags | Flag.DIFFERENCE, values=given.codes[number])
        for reader in readers:
            yield Send(reader, encoded if self._readers.have(reader, round - 1) else model)

    def _begin_round(self, part: _Part) -> Iterator[Effect]:
        """Wait for the answers to the model that was sent; end if it was the last."""
        self._flags = self._announced & CHECKPOINT_FLAGS
        if part.schedule.over(self.round):
            if self._answers is not None:
                for peer in (*self._roster.all_servers()[1:], *self._roster.adversaries()):
                    yield Send(peer, RunEnds(round=self.round))
            self._stages.on(Trigger.ROUNDS_OVER)
            yield Save(f"final/{self.peer}", on_host(part.shard.now.held))
            yield Finish()
        else:
            starting = self._stages.stage is Stage.STARTING
            self._stages.on(Trigger.INITIAL_MODEL if starting else Trigger.ROUND_BEGINS)
            yield from self._combine_when_ready(part)

    def _combine_when_ready(self, part: _Part) -> Iterator[Effect]:
        yield from part.collector.close(self.round, everyone=Flag.EVERYONE in self._announced)
        if self._stages.stage is Stage.GATHERING:
            yield SetDeadline(part.collector.waiting_for)
            if part.collector.ready:
                self._stages.on(Trigger.UPDATES_COMPLETE)
                combine = partial(part.shard.combine, part.collector, self._rule, self._rule_state)
                yield Compute("combine", combine, elements=part.collector.elements)

    def _combined(self, part: _Part) -> Iterator[Effect]:
        """Send the new partition of the next model, unless a checkpoint comes first; go on."""
        self._stages.on(Trigger.COMBINED)
        collector, round, done = part.collector, self.round, part.collector.current
        snapshot = Flag.SNAPSHOT in self._flags
        if snapshot:  # else the partition of the next model is the credit
            yield from credits(done, collector.total, collector.updates(round))
        if done == 1 and collector.answered is not None:
            self._readers.learn(collector.answered)
        if done == 1 and not snapshot:
            self._announced = self._announce(part, round + 1)
        if not snapshot:  # before the record of this round is written, so that the readers go on meanwhile
            readers = self._readers.among(self._roster.readers())
            yield from self._give(part, done - 1, part.shard.coming, round + 1, readers)
        if not collector.done:
            yield from self._combine_when_ready(part)
            return
        if snapshot and self.keeps_checkpoints:
            flags = self._flags & CHECKPOINT_FLAGS
            for worker in self._readers.late(round):
                yield Send(worker, WriteCheckpoint(position=round + 1, flags=flags))
        yield from self._end_round(part)
        if snapshot:
            self._stages.on(Trigger.SUSPENSION_DUE if Flag.SUSPEND in self._flags else Trigger.CHECKPOINT_DUE)
            yield Snapshot(self.round, self.state())
        else:
            yield from self._begin_round(part)

    def _end_round(self, part: _Part) -> Iterator[Effect]:
        """Record the round, all of whose partitions are combined."""
        fields, rejections = part.collector.report()
        yield from rejections
        counted = {} if self._answers is None else self._answers.round_fields(part.steps_per_epoch)
        stepped = {} if part.shard.stepper is None else part.shard.stepper.turn()
        yield Record("round", ({} if self._roster.validators else fields) | counted | stepped)
        if not self._diverged and not part.shard.finite:
            self._diverged = True
            yield Record("diverged", {"what": "the model is not finite"})
        part.collector.clear()
        self.round += 1
        part.shard.turn(self.round, self._readers.turn(self.round))
