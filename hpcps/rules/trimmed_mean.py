"""The trimmed mean."""

from __future__ import annotations

from decimal import Decimal
from typing import ClassVar, Literal

from pydantic import Field

from hpcps.layout import Vector
from hpcps.rules.base import Rule
from hpcps.rules.combined import Combined
from hpcps.rules.ranks import mean_of_ranks, nothing
from hpcps.updates import Updates


class TrimmedMean(Rule):
    """Per coordinate, the mean of what is left without the b smallest and the b largest of the n updates.

    b = int(min((n - 2) // 2, trim * n)); zero, with nothing accepted, if n <= 2. After Yin, Chen, Ramchandran
    and Bartlett, "Byzantine-robust distributed learning: towards optimal statistical rates", ICML 2018.
    """

    checks: ClassVar[bool] = True

    kind: Literal["trimmed_mean"] = "trimmed_mean"
    trim: float = Field(
        0.2, ge=0, lt=0.5, description="Share of the updates dropped at each end, 0 to 0.5; ZenoPS drops 0.2."
    )

    def trimmed(self, n: int) -> int:
        """Return b, how many of n > 2 updates are dropped at each end."""
        share = Decimal(repr(self.trim)) * n  # decimal: 0.29 of 100 is 29, as it was written
        return min((n - 2) // 2, int(share))

    def combine(
        self,
        updates: Updates,
        reference: Vector | None = None,
        *,
        base: Vector | None = None,
        out: Vector | None = None,
        threads: int = 1,
    ) -> Combined:
        """See `Rule.combine`."""
        n = len(updates)
        if n <= 2:
            return nothing(updates, base, out)
        b = self.trimmed(n)
        return mean_of_ranks(updates, b, n - b, base, out, threads)
