"""The mean around the median."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from hpcps.numerics.updates import Updates
from hpcps.rules.around_median import around_median
from hpcps.rules.base import Sees
from hpcps.rules.combined import Combined
from hpcps.rules.context import NOTHING, Context
from hpcps.rules.ranks import MIDDLE, Middle, nothing
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
        """See `BaseRule.unable`."""
        return self.below_bound(n)

    def combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
        """See `Rule.combine`."""
        n = len(updates)
        if n == 0 or self.unable(n):
            return nothing(updates, context)
        return around_median(updates, n - self.byzantine(n), context, self.middle)
