"""How much the updates of workers count: the experiment says it, and no worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import fsum

import numpy as np

from hpcps.numerics.blocks import Float64
from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import Roster


@dataclass(frozen=True)
class UpdateWeights:
    """The weights of a run.

    Attributes:
        workers: how much an update of each worker counts, or each of its local steps if `steps` is given; None if all
            updates count alike.
        roster: the roles of the run.
        steps: returns how many local steps a worker was allowed to take in the round; by default all take as many.
    """

    workers: tuple[float, ...] | None = None
    roster: Roster | None = None
    steps: Callable[[Peer], int] | None = None

    def of(self, senders: Sequence[Peer]) -> Float64 | None:
        """Return how much the updates of senders count, `[n]`; None if all count alike.

        The combined update of a validator counts as much as the updates of all of its workers together.
        """
        return None if self.workers is None else np.array([self._of(sender) for sender in senders])

    def _of(self, sender: Peer) -> float:
        assert self.workers is not None, "updates count differently"
        if sender.role == "validator":
            assert self.roster is not None, "there are validators"
            return fsum(self.workers[worker.index] for worker in self.roster.share(sender))
        # A worker takes the first step of a round without asking.
        return self.workers[sender.index] * (1 if self.steps is None else max(1, self.steps(sender)))

    def factor(self, worker: Peer) -> float:
        """Return the factor of an update that enters the model alone: its weight, divided by the mean of all."""
        if self.workers is None:
            return 1.0
        return self.workers[worker.index] * len(self.workers) / fsum(self.workers)


ALIKE = UpdateWeights()
"""All updates count alike."""
