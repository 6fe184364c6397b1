"""The mean around the median."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from hpcps.numerics.blocks import Float64, mean, tiles
from hpcps.numerics.layout import Vector
from hpcps.numerics.sorting import ascending
from hpcps.numerics.updates import Updates
from hpcps.rules.base import Sees
from hpcps.rules.combined import Combined, Destination
from hpcps.rules.context import NOTHING, Context
from hpcps.rules.ranks import nothing
from hpcps.rules.tolerance import Tolerant


class Meamed(Tolerant):
    """Per coordinate, the mean of the n - f values nearest to the median.

    Of two values at the same distance from the median, the smaller is kept. After Xie, Koyejo and Gupta, "Generalized
    Byzantine-tolerant SGD", arXiv 1802.10116.
    """

    sees: ClassVar[Sees] = "coordinate"

    kind: Literal["meamed"] = "meamed"

    def unable(self, n: int) -> str:
        """See `Rule.unable`."""
        f = self.byzantine(n)
        return f"{self.kind} needs at least 2 f + 1 updates, and f = {f} of {n}" if n <= 2 * f else ""

    def combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
        """See `Rule.combine`."""
        n = len(updates)
        if n == 0 or self.unable(n):
            return nothing(updates, context)
        destination = Destination(updates.layout.size, context)
        for tile in tiles(updates.layout, n):
            rows = ascending(updates.tile(tile.columns))
            destination.put(tile.columns, mean_around_median(rows, n - self.byzantine(n)))
        return destination.combined(np.ones((n, len(updates.layout.blocks)), np.bool_))


def mean_around_median(rows: list[Vector], keep: int) -> Float64:
    """Return the mean of the `keep` of n sorted values `[t]` nearest to their median, with keep > n / 2 or keep >= 1.

    The nearest values are contiguous in sorted order. A window that moves up by one replaces its smallest value by the
    next larger one, which brings it nearer as long as the smallest is the farther of the two.
    """
    n = len(rows)
    centre = mean(rows[(n - 1) // 2 : n // 2 + 1], 2 - n % 2)
    total = np.zeros(len(centre))
    moved = [centre - rows[k] > rows[k + keep] - centre for k in range(n - keep)]
    # Value k is in the window iff the window did not move past it, and has moved far enough to reach it.
    for k, row in enumerate(rows):
        inside = np.ones(len(centre), np.bool_)
        if k < n - keep:
            inside &= ~moved[k]
        if k >= keep:
            inside &= moved[k - keep]
        total += np.where(inside, row, 0.0)
    total /= keep
    return total
