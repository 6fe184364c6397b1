"""Means of the middle ranks of the updates, sorted per coordinate."""

from __future__ import annotations

from typing import Literal

import numpy as np

from hpcps.numerics.blocks import mean, tiles
from hpcps.numerics.kernels import worthwhile
from hpcps.numerics.sorting import ascending
from hpcps.numerics.updates import NotFiniteError, Updates
from hpcps.rules.combined import Combined, Destination
from hpcps.rules.context import Context
from hpcps.rules.screening import finite, screen

Middle = Literal["mean", "lower"]
MIDDLE = "The median of an even number of values: the mean of the two middle ones, or the lower one."


def ranks_of_median(n: int, middle: Middle) -> tuple[int, int]:
    """Return the first rank whose value enters the median of n values, and the rank after the last."""
    first = (n - 1) // 2
    return first, first + 1 if middle == "lower" else n // 2 + 1


def mean_of_ranks(updates: Updates, low: int, high: int, context: Context) -> Combined:
    """Take, per coordinate, the mean of the sorted values of ranks `low` to `high` (exclusive); rank 0 is the smallest.

    If these are all ranks, the values are added in the order of the updates, unsorted. See also `Rule.combine`.
    """
    n, layout = len(updates), updates.layout
    accepted = np.ones((n, len(layout.blocks)), np.bool_)
    everything = high - low == n
    base, out = context.base, context.out
    if worthwhile(updates):
        from hpcps.numerics.kernels import engine

        if everything:
            return Combined(*engine.average(updates, base, out, context.threads), accepted)
        return Combined(*engine.ordered(updates, low, high, base, out, context.threads), accepted)
    destination = Destination(layout.size, context)
    for tile in tiles(layout, n):
        values = finite(updates.tile(tile.columns), updates)
        destination.put(tile.columns, mean(values if everything else ascending(values)[low:high], high - low))
    return destination.combined(accepted)


def nothing(updates: Updates, context: Context) -> Combined:
    """Return the result for too few updates: zero, with nothing accepted; they are checked for finiteness all the same.

    Raises:
        NotFiniteError: the updates are not finite.
    """
    if not updates.checked and screen(updates).any():
        raise NotFiniteError
    destination = Destination(updates.layout.size, context)
    destination.zero()
    return destination.combined(np.zeros(updates.sent.shape, np.bool_))
