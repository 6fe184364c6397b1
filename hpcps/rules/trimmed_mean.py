"""The trimmed mean."""

from __future__ import annotations

from decimal import Decimal
from typing import Literal

import numpy as np
from pydantic import Field

from hpcps.blocks import mean, tiles
from hpcps.layout import Layout, Vector
from hpcps.rules.base import Combined, Rule
from hpcps.rules.sorting import ascending


class TrimmedMean(Rule):
    """Per coordinate, the mean of what is left without the b smallest and the b largest of the n updates.

    b = int(min((n - 2) // 2, trim * n)); zero, with nothing accepted, if n <= 2. After Yin, Chen, Ramchandran
    and Bartlett, "Byzantine-robust distributed learning: towards optimal statistical rates", ICML 2018.
    """

    kind: Literal["trimmed_mean"] = "trimmed_mean"
    trim: float = Field(
        0.2, ge=0, lt=0.5, description="Share of the updates dropped at each end, 0 to 0.5; ZenoPS drops 0.2."
    )

    def trimmed(self, n: int) -> int:
        """Return b, how many of n > 2 updates are dropped at each end."""
        share = Decimal(repr(self.trim)) * n  # decimal: 0.29 of 100 is 29, as it was written
        return min((n - 2) // 2, int(share))

    def combine(self, updates: Vector, layout: Layout, reference: Vector | None = None) -> Combined:
        """See `Rule.combine`."""
        n = len(updates)
        combined = np.zeros(layout.size, dtype=np.float32)
        if n > 2:
            b = self.trimmed(n)
            for tile in tiles(layout, n):
                values = updates[:, tile.columns]
                combined[tile.columns] = mean(ascending(values)[b : n - b] if b else values, n - 2 * b)
        return Combined(combined, np.full((n, len(layout.blocks)), n > 2))
