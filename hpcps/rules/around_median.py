"""Means of the values nearest to the median, per coordinate."""

from __future__ import annotations

import numpy as np

from hpcps.numerics.blocks import Float64, mean, tiles
from hpcps.numerics.kernels import worthwhile
from hpcps.numerics.layout import Vector
from hpcps.numerics.sorting import ascending
from hpcps.numerics.updates import Updates
from hpcps.rules.combined import Combined, Destination
from hpcps.rules.context import Context
from hpcps.rules.ranks import Middle, ranks_of_median
from hpcps.rules.screening import finite


def around_median(updates: Updates, keep: int, context: Context, middle: Middle = "mean") -> Combined:
    """Take, per coordinate, the mean of the `keep` values nearest to the median; see `Rule.combine`."""
    n, layout = len(updates), updates.layout
    ranks = ranks_of_median(n, middle)
    accepted = np.ones((n, len(layout.blocks)), np.bool_)
    if worthwhile(updates):
        from hpcps.numerics.kernels import engine

        return Combined(
            *engine.around_median(updates, ranks, keep, context.base, context.out, context.threads), accepted
        )
    destination = Destination(layout.size, context)
    for tile in tiles(layout, n):
        rows = ascending(finite(updates.tile(tile.columns), updates))
        destination.put(tile.columns, mean_around_median(rows, ranks, keep))
    return destination.combined(accepted)


def mean_around_median(rows: list[Vector], middle: tuple[int, int], keep: int) -> Float64:
    """Return the mean of the `keep` of n sorted values `[t]` nearest to their median, the mean of the middle ranks.

    The nearest values are contiguous in sorted order. A window that moves up by one replaces its smallest value by the
    next larger one, which brings it nearer as long as the smallest is the farther of the two.
    """
    n = len(rows)
    centre = mean(rows[slice(*middle)], middle[1] - middle[0])
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
