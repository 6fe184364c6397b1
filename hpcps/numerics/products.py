"""Inner products and squared norms of updates and a reference vector, per block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcps.numerics.blocks import SEGMENT, TILE, Float64, segment_sums
from hpcps.numerics.kernels import worthwhile
from hpcps.numerics.layout import Vector
from hpcps.numerics.updates import Updates


@dataclass(frozen=True)
class Products:
    """Sums over each block in float64, where products of two float32 are exact and neither overflow nor underflow.

    Attributes:
        inner: <u, v> of each update u: `[n, B]`.
        squares: |u|^2: `[n, B]`. Finite if and only if all of the block's float32 values are.
        own: |v|^2: `[B]`.
    """

    inner: Float64
    squares: Float64
    own: Float64


def products(updates: Updates, v: Vector, threads: int = 1) -> Products:
    """Return the products of each update with `v` `[d]`, per block.

    All sums have the same order, so an update that equals v has equal sums.

    Args:
        updates: n updates of d elements.
        v: `[d]`; its values need not be finite.
        threads: the maximum number of threads; the sums do not depend on it.
    """
    if worthwhile(updates):
        from hpcps.numerics.kernels import filtering

        return filtering.products(updates, v, threads)
    n, layout = len(updates), updates.layout
    inner, squares = np.zeros((n, len(layout.blocks))), np.zeros((n, len(layout.blocks)))
    own = np.zeros(len(layout.blocks))
    step = max(1, TILE // (max(n, 1) * SEGMENT)) * SEGMENT
    for index, block in enumerate(layout.blocks):
        for start in range(block.offset, block.stop, step):
            columns = slice(start, min(start + step, block.stop))
            theirs = updates.tile(columns).astype(np.float64)
            mine = v[columns].astype(np.float64)[None, :]
            inner_sums, squares_sums, limit = (segment_sums(x) for x in (theirs * mine, theirs * theirs, mine * mine))
            for segment in range(limit.shape[1]):
                inner[:, index] += inner_sums[:, segment]
                squares[:, index] += squares_sums[:, segment]
                own[index] += limit[0, segment]
    return Products(inner, squares, own)
