"""Updates held against one of one's own, block by block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcps.blocks import SEGMENT, TILE, Float64, segment_sums
from hpcps.kernels import worthwhile
from hpcps.layout import Vector
from hpcps.updates import Updates


@dataclass(frozen=True)
class Products:
    """Sums over each block, float64; products of two float32 are exact there, and neither overflow nor vanish.

    Attributes:
        inner: <u, v> of each update u: `[n, B]`.
        squares: |u|^2: `[n, B]`. Finite if and only if all of the block's float32 values are.
        own: |v|^2: `[B]`.
    """

    inner: Float64
    squares: Float64
    own: Float64


def products(updates: Updates, v: Vector, threads: int = 1) -> Products:
    """Hold each update against `v` `[d]`, block by block; all sums are of the same order, so u = v gives equal ones.

    Args:
        updates: n updates of d elements, and no others.
        v: `[d]`, whatever is in it.
        threads: the most threads that may share the work; the sums do not depend on them.
    """
    if worthwhile(updates):
        from hpcps.kernels import judging

        return judging.products(updates, v, threads)
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
