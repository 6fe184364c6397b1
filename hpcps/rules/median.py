"""The median."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from hpcps.numerics.layout import Vector
from hpcps.numerics.updates import Updates
from hpcps.rules import on_device
from hpcps.rules.base import Rule, Sees
from hpcps.rules.combined import Combined
from hpcps.rules.context import NOTHING, Context
from hpcps.rules.on_device import DeviceKernel
from hpcps.rules.parts import combine_part_by_part
from hpcps.rules.ranks import MIDDLE, Middle, mean_of_ranks, nothing, ranks_of_median


def median_of(updates: Updates, threads: int, middle: Middle = "mean") -> Vector:
    """Return the median of the updates per coordinate, in an array of its own: `[d]`."""
    return combine_part_by_part(updates, Context(threads=threads), Median(middle=middle).combine).update


class Median(Rule):
    """Per coordinate, the median of the n updates.

    After Yin, Chen, Ramchandran and Bartlett, "Byzantine-robust distributed learning: towards optimal statistical
    rates", ICML 2018.
    """

    sees: ClassVar[Sees] = "coordinate"
    checks: ClassVar[bool] = True

    kind: Literal["median"] = "median"
    middle: Middle = Field("mean", description=MIDDLE)

    def device_kernel(self, n: int) -> DeviceKernel | None:
        """See `Rule.device_kernel`."""
        return on_device.mean_of_ranks(n, *ranks_of_median(n, self.middle))

    def combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
        """See `Rule.combine`."""
        n = len(updates)
        if n == 0:
            return nothing(updates, context)
        return mean_of_ranks(updates, *ranks_of_median(n, self.middle), context)
