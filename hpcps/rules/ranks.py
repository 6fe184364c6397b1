"""Means of what is in the middle, once the updates are sorted coordinate by coordinate."""

from __future__ import annotations

import numpy as np

from hpcps.blocks import mean, tiles
from hpcps.kernels import worthwhile
from hpcps.layout import Vector
from hpcps.rules.combined import Combined, Destination
from hpcps.rules.screening import finite, screen
from hpcps.rules.sorting import ascending
from hpcps.updates import NotFiniteError, Updates


def mean_of_ranks(
    updates: Updates, low: int, high: int, base: Vector | None, out: Vector | None, threads: int
) -> Combined:
    """Take, of each coordinate, the mean of the sorted values from rank `low` to `high` (exclusive), 0 the smallest.

    If that is all of them, they are added in the order of the updates, unsorted. For the rest, see `Rule.combine`.
    """
    n, layout = len(updates), updates.layout
    accepted = np.ones((n, len(layout.blocks)), np.bool_)
    everything = high - low == n
    if worthwhile(updates):
        from hpcps.kernels import engine

        if everything:
            return Combined(*engine.average(updates, base, out, threads), accepted)
        return Combined(*engine.ordered(updates, low, high, base, out, threads), accepted)
    destination = Destination(layout.size, base, out)
    for tile in tiles(layout, n):
        values = finite(updates.tile(tile.columns), updates)
        destination.put(tile.columns, mean(values if everything else ascending(values)[low:high], high - low))
    return destination.combined(accepted)


def nothing(updates: Updates, base: Vector | None, out: Vector | None) -> Combined:
    """Give up for want of updates: zero, and nothing accepted; what is not finite is found all the same."""
    if not updates.checked and screen(updates).any():
        raise NotFiniteError
    destination = Destination(updates.layout.size, base, out)
    destination.zero()
    return destination.combined(np.zeros(updates.sent.shape, np.bool_))
