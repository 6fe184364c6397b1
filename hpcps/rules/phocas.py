"""Phocas: the mean of the values nearest to the trimmed mean."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from hpcps.numerics.destination import Combined
from hpcps.numerics.operations import mean_around_trimmed_mean, nothing
from hpcps.numerics.updates import Updates
from hpcps.rules.base import Sees
from hpcps.rules.context import NOTHING, Context
from hpcps.rules.share import DEFAULT, count
from hpcps.rules.trimming import Trimming


class Phocas(Trimming):
    """Per coordinate, the mean of the n - b values nearest to the b-trimmed mean.

    b = f if f is given; too few updates are n <= 2 f. Otherwise b = int(max(1, trim * n)), and too few are n <= 2. The
    result of too few is zero, and no update is accepted. Of two values at the same distance from the trimmed mean, the
    smaller is kept. After Xie, Koyejo and Gupta, "Phocas: dimensional Byzantine-resilient stochastic gradient descent",
    arXiv 1805.09682.
    """

    sees: ClassVar[Sees] = "coordinate"
    checks: ClassVar[bool] = True

    kind: Literal["phocas"] = "phocas"
    trim: float = Field(
        DEFAULT,
        ge=0,
        lt=0.5,
        description="Share of the updates dropped, 0 to 0.5; at least one is dropped; 0.2 in ZenoPS.",
    )

    def trimmed(self, n: int) -> int:
        """Return b, the number of updates dropped, for enough updates."""
        return max(1, count(self.trim, n)) if self.f is None else count(self.f, n)

    def combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
        n = len(updates)
        return nothing(updates) if self.too_few(n) else mean_around_trimmed_mean(updates, self.trimmed(n))
