"""Weighted sums of updates."""

from __future__ import annotations

import numpy as np

from hpcps.numerics.blocks import Float64, tiles
from hpcps.numerics.kernels import worthwhile
from hpcps.numerics.layout import Vector
from hpcps.numerics.mixture import Mixture, weighted_row
from hpcps.numerics.updates import Updates


def weighted_sum(
    updates: Updates,
    weights: Float64,
    base: Vector | None = None,
    out: Vector | None = None,
    threads: int = 1,
    extra: Vector | None = None,
) -> tuple[Vector, bool]:
    """Return the sum of the updates times their weights, and whether it is finite.

    Products and sums are float64, in the order of the updates; the sum is then rounded to float32, and
    limited to the largest float32.

    Args:
        updates: n updates of d elements, all finite.
        weights: the weight of each update in each block: `[n, B]`, finite. A row of weight 0 is not read. With an extra
            vector: `[n + 1, B]`.
        base: the vector `[d]` to which the rounded sum is added, if any.
        out: the array `[d]` for the result; by default a new one. It may be the base.
        threads: the maximum number of threads; the result does not depend on it.
        extra: one more vector `[d]`, which is added last.
    """
    if isinstance(updates, Mixture):
        m, mixed, updates = len(updates), updates.weights, updates.updates
        each = np.zeros((len(updates), weights.shape[1]))
        for row in range(m):
            each += mixed[:, row].T * weights[row]
        weights = np.concatenate((each, weights[m:]))
    if extra is not None:
        updates = Updates.join((updates, Updates.of(extra[None, :], updates.layout)))
    if worthwhile(updates):
        from hpcps.numerics.kernels import pairs

        return pairs.weighted_sum(updates, weights, base, out, threads)
    layout = updates.layout
    result: Vector = np.empty(layout.size, np.float32) if out is None else out
    finite = True
    with np.errstate(over="ignore", invalid="ignore"):
        for tile in tiles(layout, len(updates)):
            total = weighted_row(updates.tile(tile.columns), tile.spread(weights))
            target = result[tile.columns]
            target[:] = total if base is None else base[tile.columns] + total
            finite = finite and bool(np.isfinite(target).all())
    return result, finite
