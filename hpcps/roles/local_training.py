"""Local training: how workers and validators get the model, and train on it, in every run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Protocol

from hpcps.compression import Codec
from hpcps.numerics.layout import Vector
from hpcps.numerics.state import State
from hpcps.protocol.messages import Abandon, Flag, Peer, StepsAnswer, WriteCheckpoint
from hpcps.protocol.received import Lost, Malformed, Received, Replaced
from hpcps.protocol.roster import Roster, partitioning_of
from hpcps.protocol.schedule import OpenSchedule
from hpcps.roles.checkpointing import report
from hpcps.roles.evaluation import Evaluations
from hpcps.roles.events import (
    Compute,
    Computed,
    Effect,
    Event,
    Finish,
    Idle,
    SetDeadline,
    Snapped,
    Snapshot,
    Start,
)
from hpcps.roles.local_steps import LocalSteps
from hpcps.roles.model_inbox import ModelInbox
from hpcps.roles.queries import QueriedSteps
from hpcps.roles.resources import Resources
from hpcps.roles.stages import Stage, StageMachine, StageTable, Trigger
from hpcps.roles.sync.abandoning import AbandonableSteps
from hpcps.spec.schema import Run
from hpcps.training.evaluation import Progress
from hpcps.training.trainer import Trainer


class TrainedRole(Protocol):
    """What local training needs of its role, which is a `TrainingRole`; see there."""

    peer: Peer

    @property
    def stages(self) -> StageTable:
        """The table of its stages."""

    @property
    def steps_before_model(self) -> int:
        """Local steps taken before the first model comes."""

    @property
    def residual(self) -> Vector | None:
        """What is added to every model `[d]`; None for nothing."""

    def take_steps(self, steps: int) -> Progress:
        """Take so many local steps."""

    def duration_factor(self) -> float:
        """Return the factor on its seconds per step in its reports to a policy of local steps."""

    def after_steps(self) -> Iterator[Effect]:
        """Go on once the local steps of a round are done."""

    def see_model(self, read: Callable[[Vector], None]) -> None:
        """Take note of a model that the role adopts; `read` writes it into a vector."""

    def fields_of_evaluation(self) -> dict[str, object]:
        """Return what the role adds to the record of an evaluation."""

    def initial_messages(self, statistics: bool) -> Iterator[Effect]:
        """Send the initial weights."""

    def send_statistics(self) -> Iterator[Effect]:
        """Send BatchNorm statistics to the coordinator."""

    def state(self, evaluated: int) -> State:
        """Return the role's part of a checkpoint, in which so many epochs have been evaluated."""


class LocalTraining:
    """The way of a training role from one model to the next: model, local steps, evaluations, checkpoints.

    In each round it adopts the model, begins to evaluate it if that is due (the coordinator only), takes the local
    steps, and goes on with `TrainingRole.after_steps`. The evaluation runs in the background, so that nobody waits for
    it.

    Attributes:
        round: the number of the round or cycle.
        flags: those of the model adopted last.
        version: that of the model adopted last, see `ModelReply` (asynchronous).
        epochs_over: the number of epochs that are over, as that model says. Asynchronous: those of the coordinator's
            own steps, by its entries in the log so far. Synchronous: those of the run when the round began; 0 if there
            are servers and their models do not say it, see `ModelPartition`.
        is_coordinator: whether the role gives the initial weights, counts the epochs and evaluates.
        base: the parameters that the local steps begin from `[d]`.
        inbox: the next model.
        evaluator: gives the models to the evaluator, if this role is the coordinator and there is one.
    """

    def __init__(
        self,
        role: TrainedRole,
        run: Run,
        trainer: Trainer,
        resources: Resources,
        inbox: ModelInbox | None = None,
    ) -> None:
        """Prepare the training of a role.

        Args:
            role: the role.
            run: the run.
            trainer: what trains.
            resources: allocate the parameters.
            inbox: the next model; by default that of the servers.
        """
        self.round = 0
        self._stages = StageMachine(role.stages)
        self.flags = Flag.NONE
        self.version = self.epochs_over = 0
        self._progress = 0.0
        self._role = role
        self._peer = peer = role.peer
        self._run = run
        self._trainer = trainer
        self._roster = Roster.of(run)
        self.is_coordinator = peer == self._roster.coordinator
        self._steps = LocalSteps(peer, run, trainer, role.take_steps, role.after_steps, role.duration_factor)
        self._schedule = self._steps.schedule
        self._misses_rounds = run.misses_rounds and peer.role == "worker"
        shards = partitioning_of(run, trainer.layout).shards
        codec = Codec.of(run.communication.compression, trainer.layout, "model")
        self.inbox = inbox or ModelInbox(peer, trainer.layout, shards, codec, misses_rounds=self._misses_rounds)
        self.base = resources.local(trainer.layout.size)
        trainer.copy_to(self.base)
        fields = role.fields_of_evaluation
        self._evaluations = Evaluations(peer, run, trainer, self._schedule, fields, resources.on_host)
        self.evaluator = self._evaluations.client

    @property
    def stage(self) -> Stage:
        """What the role does at present."""
        return self._stages.stage

    def on(self, trigger: Trigger) -> None:
        """Change the stage as the table of the role says."""
        self._stages.on(trigger)

    @property
    def over(self) -> bool:
        """Whether the coordinator has done all its rounds."""
        return self.is_coordinator and self._schedule.over(self.round)

    def over_before(self, round: int) -> bool:
        """Return whether the run is over before a later round, or stops at a checkpoint before."""
        return self._schedule.over(round) or Flag.SUSPEND in self.flags

    @property
    def is_last(self) -> bool:
        """Whether no round follows, as far as the role knows."""
        return self._schedule.over(self.round + 1)

    @property
    def _coming(self) -> int | None:
        """The round that the next model begins; None if the model of the present round is adopted."""
        if self.stage in (Stage.SENDING, Stage.CHECKPOINTING, Stage.WAITING_FOR_MODEL):
            return self.round + (self.stage is Stage.SENDING)
        return None

    def takes(self, event: Received | Malformed) -> bool:
        """Return whether a message decides on local steps, holds BatchNorm statistics, or came in place of some."""
        if self._steps.asks and event.source in self._steps.asks.sources and isinstance(event, Received):
            return isinstance(event.message, self._steps.asks.kind)
        return self._evaluations.takes(event, self.round, self._coming)

    def handle(self, event: Event) -> Iterator[Effect]:
        """React to an event that concerns training, an evaluation or a checkpoint."""
        if isinstance(event, Computed) and event.task == "train":
            self._steps.note(event)
        asks = self._steps.asks
        match event:
            case Start() if self.stage is Stage.STARTING and self._role.steps_before_model:
                yield self._steps.task(1)
            case Start() if self.stage is Stage.STARTING:
                yield from self._present_initial_model()
            case Start():
                yield SetDeadline(self.inbox.waiting_for)
            case Computed("train") if self.stage is Stage.STARTING:
                yield from self._present_initial_model()
            case Computed("adopt", _, time):
                yield from self._evaluate_if_due(time)
            case Computed("train", progress, _, seconds) if asks:
                yield from asks.stepped(progress.steps, seconds)
            case Computed("train", _, time):
                yield from self._end_segment(time)
            case Idle() if asks:
                yield from asks.go_on()
            case Received(_, StepsAnswer() as answer) if isinstance(asks, QueriedSteps):
                yield from asks.take(answer)
            case Received(_, Abandon() as closed) if isinstance(asks, AbandonableSteps):
                yield from asks.take(closed)
            case Computed("evaluate", (job, evaluation)):
                yield from self._evaluations.measured(job, evaluation)
            case Received(source, message):
                yield from self._evaluations.put(source, message)
            case Malformed():
                yield from self._evaluations.refuse(event, self._coming)
            case Snapped():
                yield report(event)
                if self.flags & Flag.SUSPEND:
                    self.on(Trigger.SUSPENDED)
                    yield Finish(suspended=True)
            case _:
                raise AssertionError(f"{self._peer} did not ask for {event}")

    def _present_initial_model(self) -> Iterator[Effect]:
        """Give the servers the initial weights, if this role is the coordinator; then wait for the model."""
        if self.is_coordinator:
            yield from self._role.initial_messages(self._evaluations.averages)
        self.on(Trigger.READY)
        # The model may be here already, if the first step of this role takes longer than that of the coordinator.
        yield from self.adopt_when_complete()

    def adopt_when_complete(self) -> Iterator[Effect]:
        """Adopt the next model if the role waits for it and all of it has come."""
        if self.stage not in (Stage.WAITING_FOR_MODEL, Stage.STOPPING):
            return
        yield SetDeadline(self.inbox.waiting_for)
        if self.inbox.complete:
            self.on(Trigger.MODEL_COMPLETE)
            if self._misses_rounds:
                self.round = self.inbox.round
            yield Compute("adopt", self._adopt, elements=self.base.size)

    def _adopt(self) -> ModelInbox:
        """Copy the model, plus the residual of a worker, to the base and to the network; return the inbox."""
        self.version, self.epochs_over = self.inbox.version, self.inbox.epoch
        self._progress = self.inbox.progress
        self._role.see_model(self.inbox.read)
        self.inbox.read(self.base, self._role.residual)
        self._trainer.copy_from(self.base)
        if self._steps.stops_when_diverged:
            self._steps.compare(self.inbox.model)
        return self.inbox

    def _evaluate_if_due(self, time: float) -> Iterator[Effect]:
        """Begin to evaluate the model just adopted, if that is due, and take the local steps."""
        self.flags = self.inbox.flags
        yield from self._evaluations.go_on()
        if isinstance(self._schedule, OpenSchedule):
            self._schedule.learn(self.round, self.epochs_over)
        if self.flags & Flag.STATISTICS:
            yield from self._role.send_statistics()
        epochs = self._evaluations.due(self.round) if self.is_coordinator else ()
        if epochs:
            average = bool(self.flags & Flag.STATISTICS)
            yield from self._evaluations.evaluate(
                epochs, self.round, time, lambda: self.inbox.model, self.begin_steps, average=average
            )
        else:
            yield from self.begin_steps()

    def begin_steps(self) -> Iterator[Effect]:
        """Take the local steps of the round; end if the model was the last."""
        last = bool(self.inbox.flags & Flag.LAST)
        self.inbox.clear()
        if last:
            self.on(Trigger.LAST_MODEL)
            yield from self._evaluations.when_over(self._evaluations.finish)
            return
        yield from self._steps.begin(self.round, in_segments=self.is_coordinator)

    def _end_segment(self, time: float) -> Iterator[Effect]:
        segment = self._steps.end_segment()
        if segment.epoch is None:
            yield from self._role.after_steps()
        else:
            yield from self._evaluations.evaluate_own(segment.epoch, self.round, time, self._steps.next_segment)

    def take_batches(self, samples: int) -> None:
        """Take so many samples in each local step from now on."""
        self._steps.take_batches(samples)

    @property
    def abandoned(self) -> int | None:
        """The local steps after which the role abandoned the round; None if it did not."""
        return self._steps.abandoned

    def steps_before(self, round: int) -> int:
        """Return the local steps of the role, if it misses no rounds, before a round."""
        assert not isinstance(self._schedule, OpenSchedule), "the specification has been checked"
        return self._schedule.start(round)

    def ended(self) -> int:
        """Return the epochs that had ended when the round began."""
        return self._schedule.ended(self.round)

    def record_fields(self) -> dict[str, object]:
        """Return what the record of a round says of the local steps since the last one."""
        fields = self._steps.record_fields()
        return fields | ({"epoch": self._progress} if isinstance(self._schedule, OpenSchedule) else {})

    def snapshot_before_model(self, position: int) -> Iterator[Effect]:
        """Write a checkpoint once no evaluation is under way; then wait for the next model."""
        self.on(Trigger.CHECKPOINT_DUE)
        yield from self._evaluations.when_over(partial(self._snapshot_and_wait, position))

    def _snapshot_and_wait(self, position: int) -> Iterator[Effect]:
        yield from self.snapshot(position)
        self.on(Trigger.CHECKPOINT_WRITTEN)
        yield from self.adopt_when_complete()

    def snapshot(self, position: int) -> Iterator[Effect]:
        """Write this process's part of a checkpoint."""
        yield from self._evaluations.before_snapshot(self.flags)
        yield Snapshot(position, self._role.state(self._evaluations.last))

    def take_checkpoint(self, due: WriteCheckpoint) -> Iterator[Effect]:
        """Write this process's part of a checkpoint when server 0 says so, whatever the stage (asynchronous)."""
        self.flags = due.flags
        yield from self.snapshot(due.position)

    def take_place(self, incarnation: int) -> None:
        """Begin in the place of a lost process, as its replacement of a number."""
        if self.evaluator is not None:
            self.evaluator.incarnation = incarnation

    def note_evaluator(self, event: Lost | Replaced) -> Iterator[Effect]:
        """Go on without the evaluator, or with its replacement."""
        assert self.evaluator is not None, "no other role is told"
        yield from self.evaluator.note(event)

    def resume(self, round: int, evaluated: int) -> None:
        """Wait for the model that begins a round, as between two rounds; so many epochs have been evaluated."""
        self._evaluations.last = evaluated
        self.round = round
        if isinstance(self._schedule, OpenSchedule):
            self._schedule.learn(round - 1, evaluated)
        elif self._run.train.mode == "async":
            # The checkpoint may be written inside a cycle, which counts as over if its steps are done.
            self.round = self._trainer.steps_done // self._run.train.steps_per_round
        if self.stage is Stage.STARTING:  # a replacement may be told twice where it begins
            self.on(Trigger.RESUMED)
