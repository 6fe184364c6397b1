"""The model that a worker keeps itself, because there are no servers."""

from __future__ import annotations

import numpy as np

from hpcps.numerics.layout import Allocate, Vector
from hpcps.numerics.state import State
from hpcps.protocol.messages import Flag, Peer
from hpcps.protocol.schedule import Schedule
from hpcps.roles.model_inbox import ModelInbox
from hpcps.spec.schema import Run


class OwnModel(ModelInbox):
    """The whole model; all workers have the same one at the beginning of a round.

    Attributes:
        values: the model `[d]`; the next worker may read it in place.
        steps_per_epoch: the coordinator's batches in an epoch; 0 until it is known.
        diverged: whether the coordinator has recorded that the model is not finite.
    """

    def __init__(self, owner: Peer, run: Run, size: int, allocate: Allocate) -> None:
        super().__init__(owner, size, ())
        self.values = allocate(size)
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
        train, inside = self._run.train, self._run.validation.evaluate == "validator_model"
        return Schedule(train.epochs, self.steps_per_epoch, train.steps_per_round, inside)

    def describe(self, steps_per_epoch: int, *, statistics: bool) -> None:
        """Take what the coordinator says of the run: its batches in an epoch, and whether statistics are averaged."""
        self.steps_per_epoch, self._averages_statistics = steps_per_epoch, statistics

    @property
    def facts(self) -> dict[str, object]:
        """What the coordinator said of the run."""
        return {"steps_per_epoch": self.steps_per_epoch, "statistics": self._averages_statistics}

    def begin(self, round: int) -> None:
        """Release the model with which a round begins."""
        schedule = self.schedule
        self._waiting_for = ()
        self.note = {"epoch": schedule.ended(round)}
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
        return State({"values": self.values}, self.facts | {"diverged": self.diverged})

    def restore(self, state: State) -> None:
        """Restore both."""
        self.values[:] = state.arrays["values"]
        self.describe(state.facts["steps_per_epoch"], statistics=state.facts["statistics"])
        self.diverged = state.facts["diverged"]
