"""The median."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from hpcps.numerics.destination import Combined, Destination
from hpcps.numerics.layout import Vector
from hpcps.numerics.operations import mean_of_ranks, nothing
from hpcps.numerics.updates import Updates
from hpcps.rules.base import Rule, Sees
from hpcps.rules.context import NOTHING, Context

Middle = Literal["mean", "lower"]
MIDDLE = "The median of an even number of values: the mean of the two middle ones, or the lower one."


def ranks_of_median(n: int, middle: Middle) -> tuple[int, int]:
    """Return the first rank whose value enters the median of n values, and the rank after the last."""
    first = (n - 1) // 2
    return first, first + 1 if middle == "lower" else n // 2 + 1


def median_of(updates: Updates, middle: Middle = "mean") -> Vector:
    """Return the median of the updates per coordinate, in an array of its own: `[d]`."""
    apart = updates.onto(Destination(out=updates.empty(updates.layout.size), threads=updates.to.threads))
    return mean_of_ranks(apart, *ranks_of_median(len(updates), middle)).update


class Median(Rule):
    """Per coordinate, the median of the n updates.

    After Yin, Chen, Ramchandran and Bartlett, "Byzantine-robust distributed learning: towards optimal statistical
    rates", ICML 2018.
    """

    sees: ClassVar[Sees] = "coordinate"
    checks: ClassVar[bool] = True

    kind: Literal["median"] = "median"
    middle: Middle = Field("mean", description=MIDDLE)

    def combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
        n = len(updates)
        return mean_of_ranks(updates, *ranks_of_median(n, self.middle)) if n else nothing(updates)
