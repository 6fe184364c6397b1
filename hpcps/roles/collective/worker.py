"""The worker of a run without servers, and the model that it keeps itself."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from hpcps.numerics.layout import Allocate, Layout, Vector
from hpcps.numerics.state import Kept, State
from hpcps.numerics.vectors import clear_not_finite, unpack
from hpcps.protocol.messages import Flag, InitialWeights, PartWritten, Peer
from hpcps.protocol.received import Malformed, Received, Reduced
from hpcps.protocol.roster import Roster
from hpcps.protocol.schedule import Schedule, schedule_of_rounds
from hpcps.roles.checkpointing import CheckpointParts, report
from hpcps.roles.checks import not_finite, rejection, unwanted, wrong_size
from hpcps.roles.collective.averager import AllreduceAverager, Averager, Contribution, RingAverager
from hpcps.roles.events import (
    Effect,
    Event,
    Finish,
    Record,
    Save,
    Send,
    SetDeadline,
    Snapped,
    Start,
    StopRequested,
)
from hpcps.roles.model_inbox import ModelInbox
from hpcps.roles.resources import ALONE, Resources
from hpcps.roles.stages import SYNC_WORKER, Stage, Trigger
from hpcps.roles.update.packer import Packed
from hpcps.roles.worker import Worker
from hpcps.spec.schema import Run
from hpcps.training.evaluation import Progress
from hpcps.training.trainer import Trainer


class OwnModel(ModelInbox):
    """The whole model; all workers have the same one at the beginning of a round.

    Attributes:
        values: the model `[d]`; the next worker may read it in place.
        steps_per_epoch: the coordinator's batches in an epoch; 0 until it is known.
        diverged: whether the coordinator has recorded that the model is not finite.
    """

    def __init__(self, owner: Peer, run: Run, layout: Layout, allocate: Allocate) -> None:
        super().__init__(owner, layout, ())
        self.values = allocate(layout.size)
        self.steps_per_epoch = 0
        self.diverged = False
        self._run = run
        self._waiting_for: tuple[Peer, ...] = ()
        self._averages_statistics = False

    @property
    def waiting_for(self) -> tuple[Peer, ...]:
        """The workers that it needs before the next round can begin."""
        return self._waiting_for

    def wait_for(self, *peers: Peer) -> None:
        """Hold the model back; `begin` releases it."""
        self._waiting_for = peers

    @property
    def schedule(self) -> Schedule:
        """The schedule of the run."""
        schedule = schedule_of_rounds(self._run, self.steps_per_epoch)
        assert isinstance(schedule, Schedule), "a policy of local steps needs servers"
        return schedule

    def describe(self, steps_per_epoch: int, *, statistics: bool) -> None:
        """Take what the coordinator says of the run: its batches in an epoch, and whether statistics are averaged."""
        self.steps_per_epoch, self._averages_statistics = steps_per_epoch, statistics

    def message(self) -> InitialWeights:
        """Return the message that passes the initial weights on."""
        return InitialWeights(
            steps_per_epoch=self.steps_per_epoch, statistics=self._averages_statistics, values=self.values
        )

    def begin(self, round: int) -> None:
        """Release the model with which a round begins."""
        schedule = self.schedule
        self._waiting_for = ()
        self.epoch = schedule.ended(round)
        self.flags = Flag.LAST if round == schedule.rounds else Flag.NONE
        if self._averages_statistics and schedule.epochs_before(round):
            self.flags |= Flag.STATISTICS

    def read(self, out: Vector, residual: Vector | None = None) -> None:
        if residual is None:
            out[:] = self.values
        else:
            np.add(self.values, residual, out=out)

    def clear(self) -> None:
        """Keep the model: the next one is made from it."""

    def state(self) -> State:
        """Return the model, and what the coordinator said of the run."""
        facts = {"steps_per_epoch": self.steps_per_epoch, "statistics": self._averages_statistics}
        return State({"values": self.values}, facts | {"diverged": self.diverged})

    def restore(self, state: State) -> None:
        """Restore both."""
        self.values[:] = state.arrays["values"]
        self.describe(state.facts["steps_per_epoch"], statistics=state.facts["statistics"])
        self.diverged = state.facts["diverged"]


class CollectiveWorker(Worker):
    """Trains on its shard and keeps the whole model, to which an averager adds the mean of all updates.

    The coordinator passes the initial weights along the ring of the workers and is the checkpoint coordinator. Every
    worker screens its own update: a block that is not finite does not enter the sum.
    """

    stages = SYNC_WORKER

    def __init__(self, peer: Peer, run: Run, trainer: Trainer, resources: Resources = ALONE) -> None:
        self._allocate = resources.allocate
        self._roster = Roster.of(run)
        count = run.topology.workers
        self._before, self._after = (Peer("worker", (peer.index + step) % count) for step in (-1, 1))
        self._model = OwnModel(peer, run, trainer.layout, resources.allocate)
        super().__init__(peer, run, trainer, resources, (peer,), self._model)
        self._averager: Averager
        if run.train.exchange == "ring":
            self._averager = RingAverager(peer, run, trainer.layout, self._model.values)
        else:
            self._averager = AllreduceAverager(peer, run, trainer.layout, self._model.values)
        self._checkpoint = CheckpointParts(self._roster)
        self._unpacked: Vector | None = None

    @property
    def keeps_checkpoints(self) -> bool:
        """The coordinator does."""
        return self._training.is_coordinator

    @property
    def kept(self) -> Mapping[str, Kept]:
        return {**super().kept, "model": self._model}

    def handle(self, event: Event) -> Iterator[Effect]:
        match event:
            case Start():
                yield from self._start(event)
            case Received(source, InitialWeights() as initial) if self._expects_weights and source == self._before:
                yield from self._initialise(source, initial)
            case Received(source, PartWritten() as part) if self.keeps_checkpoints:
                yield from self._checkpoint.take(source, part)
            case Received() | Malformed() | Reduced() if self._averager.takes(event):
                yield from self._averager.take(event, self.round)
                yield from self._end_when_done()
            case Received() | Malformed() if not self._training.takes(event):
                yield from self._refuse(event.source, unwanted(event, "a worker"))
            case StopRequested():
                self._checkpoint.wanted = True
            case Snapped():
                yield from self._snapped(event)
            case _:
                yield from self._go_on(event)

    @property
    def _expects_weights(self) -> bool:
        return not self._model.steps_per_epoch

    def _start(self, event: Start) -> Iterator[Effect]:
        yield from self._averager.start()
        if not self._expects_weights:  # it goes on from a checkpoint
            self._model.begin(self.round)
            yield from self._training.adopt_when_complete()
            return
        if self._training.is_coordinator:
            averages = self._run.validation.batchnorm == "averaged" and self._trainer.statistics.size > 0
            self._model.values[:] = self._training.base
            self._model.describe(self._trainer.steps_per_epoch, statistics=averages)
            yield from self._begin_first_round()
        else:
            self._model.wait_for(self._before)
        yield from self._training.handle(event)

    def _initialise(self, source: Peer, initial: InitialWeights) -> Iterator[Effect]:
        """Take the initial weights."""
        if reason := wrong_size(initial.values, self._model.values.size):
            raise self.unusable(source, reason)
        self._model.values[:] = initial.values
        self._model.describe(initial.steps_per_epoch, statistics=initial.statistics)
        yield from self._begin_first_round()
        yield from self._training.adopt_when_complete()

    def _begin_first_round(self) -> Iterator[Effect]:
        """Pass the initial weights on; the round begins with them."""
        if self._after != self._roster.coordinator:
            yield Send(self._after, self._model.message())
        self._model.begin(0)

    def _refuse(self, source: Peer, reason: str) -> Iterator[Effect]:
        """Record a bad message; the run cannot go on without those of the worker before in the ring."""
        needs = (self._before,) if self._expects_weights else self._averager.needs
        if source in needs:
            raise self.unusable(source, reason)
        yield rejection(source, reason)

    def take_steps(self, steps: int) -> Progress:
        relabel = self._packer.attacker.relabel(self.round, self._training.epochs_over)
        return self._trainer.train(steps, relabel=relabel)

    def after_packing(self, packed: Packed) -> Iterator[Effect]:
        """Add the finite blocks of the update to the sum of all workers."""
        self._training.on(Trigger.UPDATE_READY)
        values = self._unpack(packed)
        refused = clear_not_finite(self._trainer.layout, values)
        if refused.any():
            yield not_finite(self.peer, refused)
        flags = self._announce() if self.keeps_checkpoints else Flag.NONE
        yield from self._averager.begin(Contribution(self.round, values, int(bool(packed.parts)), flags))
        yield from self._end_when_done()

    def _unpack(self, packed: Packed) -> Vector:
        """Return the update `[d]`, without a copy if it is whole."""
        if packed.parts and packed.mask.all():
            return packed.payload
        if self._unpacked is None:
            self._unpacked = self._allocate(self._model.values.size)
        mask = packed.mask if packed.parts else np.zeros_like(packed.mask)
        unpack(self._trainer.layout, packed.payload, mask, self._unpacked)
        return self._unpacked

    def _announce(self) -> Flag:
        """Return what the checkpoint coordinator says of checkpoints in this round."""
        schedule, after = self._model.schedule, self.round + 1
        if after >= schedule.rounds:
            return Flag.NONE
        epochs = schedule.ended(self.round), schedule.ended(after)
        due = self._checkpoint.is_due(self._run.checkpoint, (self.round, after), epochs)
        if self._checkpoint.open is not None:
            return Flag.NONE
        return self._checkpoint.begin(after) if due or self._checkpoint.wanted else Flag.NONE

    def _end_when_done(self) -> Iterator[Effect]:
        """End the round once the exchange is done; write a checkpoint if the checkpoint coordinator said so."""
        training, flags = self._training, self._averager.flags
        if training.stage is not Stage.SENDING:
            return
        yield SetDeadline(self._averager.waiting_for)
        if not self._averager.done:
            return
        assert self._packed is not None, "its update is in the sum"
        yield Record("round", training.record_fields() | self._packed.fields())
        training.round += 1
        self._model.begin(self.round)
        if training.is_coordinator:
            yield from self._report_model()
        if Flag.SUSPEND in flags:
            self._model.wait_for(*self._roster.readers())
            training.flags |= Flag.SUSPEND
        if Flag.SNAPSHOT in flags:
            yield from training.snapshot_before_model(training.round)
        else:
            training.on(Trigger.ALL_SENT)
            yield from training.adopt_when_complete()

    def _report_model(self) -> Iterator[Effect]:
        """Record once that the model is not finite; save the last model."""
        if not self._model.diverged and not np.isfinite(self._model.values).all():
            self._model.diverged = True
            yield Record("diverged", {"what": "the model is not finite"})
        if Flag.LAST in self._model.flags:
            yield Save(f"final/{self.peer}", self._model.values)

    def _snapped(self, event: Snapped) -> Iterator[Effect]:
        """Tell the checkpoint coordinator that this worker's part is written; end if the run is to stop."""
        suspended = Flag.SUSPEND in self._averager.flags
        if self.keeps_checkpoints:
            if suspended:
                yield SetDeadline(tuple(peer for peer in self._checkpoint.missing() if peer != self.peer))
            yield from self._checkpoint.enter(self.peer, event.position, event.checksum)
            return
        yield report(event, self._roster.coordinator)
        if suspended:
            self._training.on(Trigger.SUSPENDED)
            yield Finish(suspended=True)
