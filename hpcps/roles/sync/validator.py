"""The validator of the synchronous protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from hpcps.aggregation.encoding import UpdateDecoder
from hpcps.aggregation.outcomes import Acceptance
from hpcps.aggregation.rule_state import RuleState
from hpcps.numerics.kernels import prepare
from hpcps.numerics.state import Kept, State
from hpcps.numerics.updates import Destination
from hpcps.protocol.messages import (
    Absent,
    AuditedState,
    CombinedUpdate,
    Credit,
    EndWait,
    Flag,
    ModelPartition,
    Peer,
    ProbeStep,
    Serve,
    TakePart,
    Update,
)
from hpcps.protocol.partitioning import Partition
from hpcps.protocol.received import Lost, Malformed, Received, Replaced
from hpcps.protocol.roster import EVALUATOR, SERVER_0, Roster, partitioning_of
from hpcps.roles.checks import unwanted
from hpcps.roles.events import Compute, Computed, Effect, Event, Record, Resumed, SetDeadline, Start
from hpcps.roles.resources import ALONE, Resources
from hpcps.roles.stages import SYNC_VALIDATOR, Stage, Trigger
from hpcps.roles.sync.audit import Auditor
from hpcps.roles.sync.partitions import PartitionCollector, PartitionSender, credits
from hpcps.roles.sync.quorum import QuorumCollector
from hpcps.roles.training_role import TrainingRole
from hpcps.roles.weights import ALIKE, UpdateWeights
from hpcps.rules import Combined, Context, Rule
from hpcps.spec.schema import Run
from hpcps.training.evaluation import Progress
from hpcps.training.trainer import Trainer


class SyncValidator(TrainingRole):
    """Combines its share of the updates by the run's rule, and sends the result to the servers.

    Under a rule that needs a reference it trains on its own shard to know what an update should look like; under the
    others it only runs its batches, which feeds its BatchNorm statistics.
    """

    stages = SYNC_VALIDATOR

    def __init__(
        self, peer: Peer, run: Run, trainer: Trainer, resources: Resources = ALONE, weights: UpdateWeights = ALIKE
    ) -> None:
        super().__init__(peer, run, trainer, resources)
        layout, roster, rule = trainer.layout, Roster.of(run), run.validation.rule
        assert isinstance(rule, Rule), "the specification has been checked"
        self._rule = rule
        self._rule_state = RuleState(rule, run.seed, peer)
        self._weights = weights
        self._acceptance = Acceptance()
        self._roster, self._servers = roster, roster.all_servers()
        self._presents = False
        self._sender = PartitionSender(self._training, self._servers, self._record_round)
        self._partitioning = partitioning_of(run, layout)
        partitions = tuple(Partition.of(layout, bounds) for bounds in self._partitioning.updates[peer.index])
        # It may serve those of a lost validator.
        share = roster.all_workers() if run.survive.validators else roster.share(peer)
        self._decoder = UpdateDecoder.of(run, layout)
        self._collector = (
            QuorumCollector(peer, run, share, partitions, decoder=self._decoder)
            if run.misses_rounds
            else PartitionCollector(share, partitions, decoder=self._decoder)
        )
        self._auditor: Auditor | None = None
        if resources.replicas is not None:
            self._auditor = Auditor(peer, run, share, resources.replicas)
        self._reference = resources.local(layout.size) if "reference" in rule.requires else None
        self._combined = resources.allocate(layout.size)
        self._threads = resources.threads
        prepare(len(share) * layout.size)

    @property
    def kept(self) -> Mapping[str, Kept]:
        audits = {} if self._auditor is None else {"audits": self._auditor}
        return {"acceptance": self._acceptance, "rule": self._rule_state, **self._decoder.kept, **audits}

    def state(self, evaluated: int) -> State:
        collected = {name: part.state() for name, part in self._collector.kept.items()}
        return super().state(evaluated).having(**collected)

    def restore(self, state: State) -> None:
        if "lost" in state.facts:  # it has no part of the checkpoint
            self.take_place(TakePart(round=state.facts["round"], incarnation=0, evaluated=state.facts["lost"]))
            self._presents = False  # the servers have their parts of the checkpoint
        else:
            super().restore(state)
        self._collector.begin(self.round, self._roster.share(self.peer))
        self._exclude()
        for name, part in self._collector.kept.items():
            if name in state.facts:  # a checkpoint of an earlier version waits for all workers
                part.restore(state.part(name))

    def take_place(self, part: TakePart) -> None:
        """Begin in the place of a lost validator: with the batches of the round, and without what that one kept."""
        trainer = self._trainer
        self._training.take_place(part.incarnation)
        if not part.round:
            return  # the servers have no model yet
        # Servers may lack the initial model: a coordinator that was lost has sent it to some only, and rounds may have
        # closed since on server 0, without an update.
        self._presents = self._training.is_coordinator
        if self._presents and self.steps_before_model:
            trainer.train(self.steps_before_model)
        trainer.go_to_step(self._training.steps_before(part.round))
        self._training.resume(part.round, part.evaluated)
        self._collector.begin(part.round, ())

    def evaluation_fields(self) -> dict[str, object]:
        return self._acceptance.fields()

    def handle(self, event: Event) -> Iterator[Effect]:
        match event:
            case Received(source, ModelPartition() as model) if source.role == "server":
                yield from self._sender.receive_model(source, model)
            case Received(source, ProbeStep() as probe) if self._auditor and source.role == "worker":
                self._auditor.compare_probe(source, probe)
            case Received(source, AuditedState() as handed) if self._auditor and source.role == "worker":
                self._auditor.take(source, handed)
                yield from self._combine_when_ready()
            case Computed("audit", found) if self._auditor:
                yield from self._auditor.conclude(found)
                yield from self._end_steps()
            case Received(source, Update() | Absent() as answer) if source.role == "worker":
                if self._auditor is not None:
                    self._auditor.note(source, answer, self.round)
                yield from self._collector.put(source, answer, self.round, event.arrived)
                yield from self._combine_when_ready()
            case Resumed():
                self._collector.elapsed(self.round)
                yield from self._combine_when_ready()
            case Lost() | Replaced() if event.peer == EVALUATOR:
                yield from self._training.note_evaluator(event)
            case Lost() | Replaced() if isinstance(self._collector, QuorumCollector):
                yield from self._collector.note_member(event, self.round, self._training.over_before)
                yield from self._combine_when_ready()
            case Start() if self._presents:
                yield from self.initial_messages(statistics=False)
                yield from self._training.handle(event)
            case Received(source, Serve() as taken_over) if source == SERVER_0:
                if isinstance(self._collector, QuorumCollector):
                    self._collector.positions.learn(taken_over.positions)
            case Received(source, EndWait() as ends) if source == SERVER_0:
                if isinstance(self._collector, QuorumCollector):
                    self._collector.end_wait(ends.round)
                    yield from self._combine_when_ready()
            case Received(source, Credit() as credit) if source in self._servers:
                yield from self._sender.take_credit(source, credit)
            case Received() | Malformed() if not self._training.takes(event):
                yield from self._refuse(event.source, unwanted(event, "a validator"), event.arrived)
            case Computed("combine"):
                yield from self._send_combined()
            case Computed("adopt"):
                yield from self._serve()
                yield from self._close()
                yield from self._training.handle(event)
            case _:
                yield from self._training.handle(event)

    def take_steps(self, steps: int) -> Progress:
        """Train under a rule that needs a reference, and before the first model; else only run the batches."""
        trains = self._reference is not None or self._trainer.steps_done < self.steps_before_model
        if not trains:
            return self._trainer.observe(steps)
        return self._trainer.train(steps, epoch=self.rate_epoch)

    def after_steps(self) -> Iterator[Effect]:
        """Execute the audits of the last round, once the own local steps are done; then begin to combine updates."""
        if self._auditor is not None and (audits := self._auditor.due) is not None:
            yield audits
        else:
            yield from self._end_steps()

    def _end_steps(self) -> Iterator[Effect]:
        """Begin to combine updates, without those of the workers that are excluded."""
        self._exclude()
        self._training.on(Trigger.STEPS_DONE)
        yield from self._combine_when_ready()

    def _exclude(self) -> None:
        """Count the answers of excluded workers as absent, and expect as many Byzantine updates less."""
        excluded = [] if self._auditor is None else self._auditor.excluded
        for worker in excluded:
            self._collector.exclude(worker)
        if excluded:
            rule, members = self._run.validation.rule, len(self._roster.share(self.peer))
            assert isinstance(rule, Rule), "the specification has been checked"
            self._rule = rule.without(len(excluded), members)

    def _serve(self) -> Iterator[Effect]:
        """Serve the workers that this validator has in the round, as its model says."""
        there, collector = self._training.inbox.validators, self._collector
        if there is not None and isinstance(collector, QuorumCollector):
            of = self._roster.validator_of
            mine = [peer for peer in self._roster.all_workers() if of(peer.index, there) == self.peer.index]
            over = self._training.over_before(self.round)
            yield from collector.serve(mine, self.round, over=over)

    def _close(self) -> Iterator[Effect]:
        """Close the round for further workers if that is due, and if its model has said whether it waits for all."""
        training = self._training
        if training.stage in (Stage.TRAINING, Stage.GATHERING, Stage.COMBINING):
            yield from self._collector.close(self.round, training.inbox.flags)

    def _combine_when_ready(self) -> Iterator[Effect]:
        yield from self._close()
        if self._training.stage is not Stage.GATHERING:
            return
        collector, auditor = self._collector, self._auditor
        yield SetDeadline(collector.waiting_for)
        if auditor is not None and collector.ready and collector.current == collector.total - 1:
            suspends = Flag.SUSPEND in self._training.flags
            yield from auditor.ask(self.round, last=self._training.is_last, suspends=suspends)
            if auditor.waiting_for:
                yield SetDeadline(auditor.waiting_for)
                return
        if collector.ready:
            self._training.on(Trigger.UPDATES_COMPLETE)
            yield Compute("combine", self._combine, elements=collector.elements)

    def _combine(self) -> Combined:
        collector = self._collector
        if self._reference is not None and collector.current == 0:
            self._trainer.copy_to(self._reference)
            self._reference -= self._training.base
        columns = collector.partition.columns
        context = Context(
            None if self._reference is None else self._reference[columns],
            self.loss_of_round() if "loss" in self._rule.requires else None,
            self._rule_state.random,
            self._rule_state.arrays,
        )
        to = Destination(out=self._combined[columns], threads=self._threads)
        return collector.combine_next(self._rule, context, to, self._weights)

    def _send_combined(self) -> Iterator[Effect]:
        """Send the combined partition to the servers; go on with the next one."""
        collector, done = self._collector, self._collector.current
        yield from credits(done, collector.total, collector.updates(self.round))
        positions = collector.counted if self._run.survive.validators else None
        for server, number, (start, stop) in self._partitioning.pieces(done - 1):
            combined = CombinedUpdate(
                round=self.round, shard=server, partition=number, flags=self._sender.checkpoint_flags,
                answered=collector.answered if number == 0 else None, lost=collector.lost if number == 0 else (),
                positions=positions if server == SERVER_0.index and number == 0 else None,
                values=self._combined[start:stop],
            )  # fmt: skip
            yield from self._sender.put(Peer("server", server), combined)
        if collector.done:
            self._training.on(Trigger.ALL_COMBINED)
            yield from self._sender.end_when_sent()
        else:
            self._training.on(Trigger.COMBINED)
            yield from self._combine_when_ready()

    def _record_round(self) -> Iterator[Effect]:
        """Record what was trained, and what became of the updates."""
        fields, rejections = self._collector.report()
        self._acceptance.add(self._collector.tally)
        yield from rejections
        yield Record("round", self._training.record_fields() | fields)
        self._collector.clear()
        if self._auditor is not None:
            epoch = None if self._run.train.policy is None else self._training.epochs_over
            self._auditor.end_round(self.round, self._training.base, epoch)

    def _refuse(self, source: Peer, reason: str, arrived: float) -> Iterator[Effect]:
        """Count a bad message as an empty update; the run cannot go on without a server's."""
        if source.role == "server":
            raise self.unusable(source, reason)
        if self._auditor is not None:
            self._auditor.take(source, None)
        yield from self._collector.refuse(source, reason, arrived=arrived)
        yield from self._combine_when_ready()
