"""The trimmed mean."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from hpcps.numerics.destination import Combined
from hpcps.numerics.operations import mean_of_ranks, nothing
from hpcps.numerics.updates import Updates
from hpcps.rules.base import Sees
from hpcps.rules.context import NOTHING, Context
from hpcps.rules.share import DEFAULT, count
from hpcps.rules.trimming import Trimming


class TrimmedMean(Trimming):
    """Per coordinate, the mean of the n updates without the b smallest and the b largest values.

    b = f if f is given; too few updates are n <= 2 f. Otherwise b = int(min((n - 2) // 2, trim * n)), and too few are
    n <= 2. The result of too few is zero, and no update is accepted. After Yin, Chen, Ramchandran and Bartlett,
    "Byzantine-robust distributed learning: towards optimal statistical rates", ICML 2018.
    """

    sees: ClassVar[Sees] = "coordinate"
    checks: ClassVar[bool] = True

    kind: Literal["trimmed_mean"] = "trimmed_mean"
    trim: float = Field(
        DEFAULT, ge=0, lt=0.5, description="Share of the updates dropped at each end, 0 to 0.5; 0.2 in ZenoPS."
    )

    def trimmed(self, n: int) -> int:
        """Return b, the number of updates dropped at each end, for enough updates."""
        return min((n - 2) // 2, count(self.trim, n)) if self.f is None else count(self.f, n)

    def combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
        n = len(updates)
        if self.too_few(n):
            return nothing(updates)
        b = self.trimmed(n)
        return mean_of_ranks(updates, b, n - b)
