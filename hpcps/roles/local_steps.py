"""The local steps of a training role: how many it takes, in which groups, and whether they are in vain."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from hpcps.numerics.layout import Vector
from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import Roster
from hpcps.protocol.schedule import OpenSchedule, Segment, schedule_of_rounds
from hpcps.roles.evaluation import Continuation
from hpcps.roles.events import Compute, Computed, Effect
from hpcps.roles.queries import QueriedSteps
from hpcps.roles.sync.abandoning import AbandonableSteps
from hpcps.spec.schema import Run
from hpcps.training.evaluation import Progress
from hpcps.training.trainer import Trainer, training_fields

IN_VAIN = 3
"""Groups of local steps without a finite loss after which `train.stop_when_diverged` stops training."""


class LocalSteps:
    """The local steps of one role.

    Attributes:
        schedule: the schedule of the run.
        asks: takes steps one by one, as messages allow: with a policy of local steps, and for a worker that may abandon
            a round; else None.
    """

    def __init__(
        self,
        peer: Peer,
        run: Run,
        trainer: Trainer,
        take: Callable[[int], Progress],
        after: Continuation,
        duration_factor: Callable[[], float],
    ) -> None:
        """Plan the steps of a role.

        Args:
            peer: the role.
            run: the run.
            trainer: what trains.
            take: takes so many local steps.
            after: goes on once the local steps of a round are done.
            duration_factor: returns the factor on the seconds per step in the role's reports to a policy.
        """
        self._trainer = trainer
        self._take = take
        self._speed = run.heterogeneity.speed_of(peer.role, peer.index)
        self.schedule = schedule_of_rounds(run, trainer.steps_per_epoch)
        self.asks: QueriedSteps | AbandonableSteps | None = None
        roster, train = Roster.of(run), run.train
        self._may_miss, self._has_quorum = run.misses_rounds and peer.role == "worker", run.has_quorum
        if (policy := train.policy) is not None and peer in roster.governed(run):
            self.asks = QueriedSteps(peer, policy, self.task, after, duration_factor)
        if self._may_miss and train.abandon and peer != roster.coordinator:
            sources = roster.possible_combiners_of(run, peer.index)
            self.asks = AbandonableSteps(sources, train.steps_per_round, self.task, after)
        self._usual_batch, self._load = run.batch_size(peer.role, peer.index), 1.0
        self._segments: list[Segment] = []
        self._seen: list[Progress] = []
        self._overrun = 0
        self.stops_when_diverged = run.train.stop_when_diverged
        self._model_before: Vector | None = None
        self._losses_in_vain = 0

    def task(self, steps: int) -> Compute:
        """Return the task of taking so many steps, at the imposed speed of the role."""
        done = self._trainer.steps_done
        slowdown = self._speed.slowdown(range(done, done + steps), self._trainer.steps_per_epoch)
        least = steps * (self._speed.seconds or 0.0)
        take = self._trainer.skip if self._diverged else self._take
        return Compute("train", partial(take, steps), steps=steps, load=self._load, slowdown=slowdown, least=least)

    def take_batches(self, samples: int) -> None:
        """Take so many samples in each step from now on."""
        self._trainer.batch_size = samples
        self._load = samples / self._usual_batch

    def begin(self, round: int, *, in_segments: bool) -> Iterator[Effect]:
        """Begin the steps of a round; the coordinator takes them in segments, between which its own epochs end."""
        if self.asks is not None:
            yield from self.asks.begin(round)
            return
        if isinstance(self.schedule, OpenSchedule):  # a validator that only runs batches: one for each round
            self._segments = [Segment(self._trainer.steps_done + 1)]
        else:
            # Those that miss rounds have taken fewer steps than the schedule says. A step before the first model is one
            # of the first round, but for late workers.
            misses = self._may_miss and (round or (self._has_quorum and not in_segments))
            missed = self.schedule.start(round) - self._trainer.steps_done if misses else 0
            segments = self.schedule.segments(round) if in_segments else [Segment(self.schedule.stop(round))]
            self._segments = [replace(each, stop=each.stop - missed) for each in segments]
        yield from self.next_segment()

    def next_segment(self) -> Iterator[Effect]:
        """Take the steps of the next segment."""
        yield self.task(self._segments[0].stop - self._trainer.steps_done)

    def end_segment(self) -> Segment:
        """Return the segment whose steps are done; its epoch is None if it is the last of the round."""
        return self._segments.pop(0)

    def note(self, done: Computed) -> None:
        """Note the result of a task, for the record of the round."""
        progress = done.result
        self._seen.append(progress)
        if progress.samples:
            self._losses_in_vain = 0 if np.isfinite(progress.loss) else self._losses_in_vain + 1
        self._overrun += progress.steps if done.overran else 0

    def compare(self, model: Vector) -> None:
        """Start to count losses that are not finite again, unless the model is that of the round before, bit by bit."""
        before, self._model_before = self._model_before, model
        if before is None or not np.array_equal(before.view(np.uint32), model.view(np.uint32)):
            self._losses_in_vain = 0

    @property
    def _diverged(self) -> bool:
        """Whether further local steps are in vain.

        The losses of the last `IN_VAIN` groups of steps, all from this same model, were not finite. Then neither are
        their updates, which never reach the model. If it changes after all, the role trains again.
        """
        return self.stops_when_diverged and self._losses_in_vain >= IN_VAIN

    def record_fields(self) -> dict[str, object]:
        """Return what the record of a round says of the steps since the last one."""
        seen, self._seen = self._seen, []
        fields = training_fields(self._trainer, seen)
        if self._speed.seconds is not None:
            fields["overrun_steps"], self._overrun = self._overrun, 0
        return fields | (self.asks.fields() if self.asks else {})

    @property
    def abandoned(self) -> int | None:
        """The local steps after which the role abandoned the round; None if it did not."""
        return self.asks.abandoned if isinstance(self.asks, AbandonableSteps) else None
