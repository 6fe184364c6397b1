"""The mean around the median."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from hpcps.numerics.destination import Combined
from hpcps.numerics.operations import mean_around_median, nothing
from hpcps.numerics.updates import Updates
from hpcps.rules.base import Sees
from hpcps.rules.context import NOTHING, Context
from hpcps.rules.median import MIDDLE, Middle, ranks_of_median
from hpcps.rules.tolerance import Tolerant


class Meamed(Tolerant):
    """Per coordinate, the mean of the n - f values nearest to the median.

    Of two values at the same distance from the median, the smaller is kept. After Xie, Koyejo and Gupta, "Generalized
    Byzantine-tolerant SGD", arXiv 1802.10116.
    """

    sees: ClassVar[Sees] = "coordinate"
    checks: ClassVar[bool] = True

    kind: Literal["meamed"] = "meamed"
    middle: Middle = Field("mean", description=MIDDLE)

    def unable(self, n: int) -> str:
        return self.below_bound(n)

    def combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
        n = len(updates)
        if n == 0 or self.unable(n):
            return nothing(updates)
        return mean_around_median(updates, ranks_of_median(n, self.middle), n - self.byzantine(n))
