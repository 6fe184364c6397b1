"""The mean of all updates by MPI's Allreduce."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics.exact_sum import add_mean, exponents, to_units
from hpcps.numerics.layout import Layout, Vector
from hpcps.protocol.messages import Flag, Malformed, Peer, Received, Reduced
from hpcps.protocol.roster import Roster
from hpcps.roles.collective.averager import Contribution
from hpcps.roles.events import Effect, Join, Now, Reduce
from hpcps.spec.schema import Run


class AllreduceAverager:
    """Adds the mean of n updates x_0, … x_(n-1) `[d]` to the model w `[d]`, of which m take part.

    MPI does not define the order of a sum, so the sum is made exact (`numerics/exact_sum.py`):

        e = max over k of exponents(x_k)                for each block: Allreduce(MAX)
        s = sum over k of to_units(x_k, e, n)           Allreduce(SUM) in float64, exact in any order
        w = w + float32(s in units of 2^(e + ceil(log2 n) - 53) / m)

    The flags of the keeper are one more element of the maximum, m is one more element of the sum. Nobody computes local
    steps during the sum: it begins when all have given their exponents.
    """

    def __init__(self, peer: Peer, run: Run, layout: Layout, model: Vector) -> None:
        """Prepare the averaging of one worker.

        Args:
            peer: the worker.
            run: the run.
            layout: the blocks of the model.
            model: the model `[d]`; each exchange changes it.
        """
        self.done, self.flags = True, Flag.NONE
        self.needs: tuple[Peer, ...] = ()
        self._workers = Roster.of(run).readers()
        self.waiting_for = tuple(worker for worker in self._workers if worker != peer)
        self._layout = layout
        self._model = model
        self._units: NDArray[np.float64] = np.empty(layout.size + 1)
        self._exponents: NDArray[np.int64] = np.empty(len(layout.blocks), np.int64)
        self._own: Contribution | None = None

    def start(self) -> Iterator[Effect]:
        """See `Averager.start`."""
        yield Join(self._workers)

    def begin(self, own: Contribution) -> Iterator[Effect]:
        """See `Averager.begin`."""
        self._own, self.done = own, False
        yield Reduce(np.append(exponents(self._layout, own.values), int(own.flags)), "max")

    def takes(self, event: Received | Malformed | Reduced) -> bool:
        """See `Averager.takes`."""
        return isinstance(event, Reduced)

    def take(self, event: Received | Malformed | Reduced, round: int) -> Iterator[Effect]:
        """See `Averager.take`."""
        assert isinstance(event, Reduced), "it takes no others"
        own, count = self._own, len(self._workers)
        if own is not None:
            self._own = None
            self.flags, self._exponents = Flag(int(event.values[-1])), event.values[:-1]
            scale = partial(to_units, self._layout, own.values, self._exponents, count, self._units[:-1])
            yield Now("apply", scale, elements=self._layout.size)
            self._units[-1] = own.count
            yield Reduce(self._units, "sum", soon=True)
            return
        divisor = max(1, int(self._units[-1]))
        add = partial(add_mean, self._layout, self._units[:-1], self._exponents, count, divisor, self._model)
        yield Now("apply", add, elements=self._layout.size)
        self.done = True
