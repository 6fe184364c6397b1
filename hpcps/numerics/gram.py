"""Inner products of all pairs of updates, per block."""

from __future__ import annotations

import numpy as np

from hpcps.numerics.blocks import SEGMENT, Float64, segment_sums
from hpcps.numerics.kernels import worthwhile
from hpcps.numerics.layout import Vector
from hpcps.numerics.updates import Updates

STRETCH = 64 * SEGMENT
"""Elements of a stretch of a block, counted from the block's start. Its segments are added one by one; then the sums of
stretches are added one by one. Threads share the work by stretches, so their number does not change the result."""


def gram(updates: Updates, extra: Vector | None = None, threads: int = 1) -> Float64:
    """Return the inner products of all pairs of updates, per block: `[B, m, m]`, symmetric.

    Products of two float32 are exact in float64, and neither overflow nor underflow. All sums have the same order, so
    equal updates have equal products.

    Args:
        updates: n updates of d elements, all finite.
        extra: one more vector `[d]`, which becomes the last row and column; m is then n + 1, otherwise n.
        threads: the maximum number of threads; the result does not depend on it.
    """
    if extra is not None:
        updates = Updates.join((updates, Updates.of(extra[None, :], updates.layout)))
    if worthwhile(updates):
        from hpcps.numerics.kernels import pairs

        return pairs.gram(updates, threads)
    m, layout = len(updates), updates.layout
    totals = np.zeros((len(layout.blocks), m, m))
    for index, block in enumerate(layout.blocks):
        for start in range(block.offset, block.stop, STRETCH):
            sums = np.zeros((m, m))
            for begin in range(start, min(start + STRETCH, block.stop), SEGMENT):
                rows = updates.tile(slice(begin, min(begin + SEGMENT, block.stop))).astype(np.float64)
                for row in range(m):
                    sums[row, row:] += segment_sums(rows[row:] * rows[row])[:, 0]
            totals[index] += sums
    return totals + np.triu(totals, 1).transpose(0, 2, 1)


def squared_distances(products: Float64) -> Float64:
    """Return the squared distances of all pairs of rows from their inner products `[..., m, m]`.

    The error is about 1e-15 times the rows' squared norms; the distance of equal rows is exactly 0.
    """
    squares = np.diagonal(products, axis1=-2, axis2=-1)
    return np.maximum(squares[..., :, None] + squares[..., None, :] - 2 * products, 0.0)
