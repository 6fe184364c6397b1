"""Phocas: the mean of the values nearest to the trimmed mean."""

from __future__ import annotations

from decimal import Decimal
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.blocks import Float64, mean, tiles
from hpcps.kernels import worthwhile
from hpcps.layout import Vector
from hpcps.rules.base import Rule
from hpcps.rules.combined import Combined, Destination
from hpcps.rules.ranks import nothing
from hpcps.rules.screening import finite
from hpcps.rules.sorting import ascending
from hpcps.updates import Updates


class Phocas(Rule):
    """Per coordinate, the mean of the n - b values nearest to the b-trimmed mean.

    b = int(max(1, trim * n)); zero, with nothing accepted, if n <= 2. Of two values equally far from the
    trimmed mean the smaller is kept. After Xie, Koyejo and Gupta, "Phocas: dimensional Byzantine-resilient
    stochastic gradient descent", arXiv 1805.09682.
    """

    checks: ClassVar[bool] = True

    kind: Literal["phocas"] = "phocas"
    trim: float = Field(
        0.2,
        ge=0,
        lt=0.5,
        description="Share of the updates dropped, 0 to 0.5, but at least one; ZenoPS: 0.2.",
    )

    def trimmed(self, n: int) -> int:
        """Return b, how many of n > 2 updates are dropped."""
        share = Decimal(repr(self.trim)) * n  # decimal: 0.29 of 100 is 29, as it was written
        return max(1, int(share))

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
        n, layout = len(updates), updates.layout
        if n <= 2:
            return nothing(updates, base, out)
        b, accepted = self.trimmed(n), np.ones((n, len(layout.blocks)), np.bool_)
        if worthwhile(updates):
            from hpcps.kernels import engine

            return Combined(*engine.ordered(updates, b, n - b, base, out, threads, nearest=True), accepted)
        destination = Destination(layout.size, base, out)
        for tile in tiles(layout, n):
            values = ascending(finite(updates.tile(tile.columns), updates))
            destination.put(tile.columns, _nearest_mean(values, b))
        return destination.combined(accepted)


def _nearest_mean(rows: list[Vector], b: int) -> Float64:
    """Return the mean of the n - b of n sorted values `[t]` nearest to their b-trimmed mean.

    The nearest values are neighbours in sorted order: some window [k, n - b + k). Moving the window up by one
    takes value n - b + k for value k, which pays while value k is the farther of the two, and once it does
    not, never again. So each of these b pairs is decided by itself, and the values between are in every
    window.
    """
    keep = len(rows) - b
    centre = mean(rows[b:keep], keep - b)
    pairs = zip(rows[:b], rows[keep:], strict=True)
    ends = [np.where(centre - low > high - centre, high, low) for low, high in pairs]
    return mean(rows[b:keep] + ends, keep)
