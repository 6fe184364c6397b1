"""The trimmed mean."""

from __future__ import annotations

from decimal import Decimal
from typing import ClassVar, Literal

from pydantic import Field

from hpcps.numerics.updates import Updates
from hpcps.rules.base import Rule, Sees
from hpcps.rules.combined import Combined
from hpcps.rules.context import NOTHING, Context
from hpcps.rules.ranks import mean_of_ranks, nothing


class TrimmedMean(Rule):
    """Per coordinate, the mean of the n updates without the b smallest and the b largest values.

    b = int(min((n - 2) // 2, trim * n)). If n <= 2, the result is zero and no update is accepted. After Yin, Chen,
    Ramchandran and Bartlett, "Byzantine-robust distributed learning: towards optimal statistical rates", ICML 2018.
    """

    sees: ClassVar[Sees] = "coordinate"
    checks: ClassVar[bool] = True

    kind: Literal["trimmed_mean"] = "trimmed_mean"
    trim: float = Field(
        0.2, ge=0, lt=0.5, description="Share of the updates dropped at each end, 0 to 0.5; 0.2 in ZenoPS."
    )

    def trimmed(self, n: int) -> int:
        """Return b, the number of updates dropped at each end, for n > 2."""
        share = Decimal(repr(self.trim)) * n  # in binary floating point 0.29 * 100 is less than 29
        return min((n - 2) // 2, int(share))

    def combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
        """See `Rule.combine`."""
        n = len(updates)
        if n <= 2:
            return nothing(updates, context)
        b = self.trimmed(n)
        return mean_of_ranks(updates, b, n - b, context)
