"""Numerics on the updates of a round: tiles that fit a cache, and sums over blocks.

Results do not depend on the alignment of the caller's arrays, on tiles or on threads. So a run over MPI, a run in one
process and the kernels agree bit for bit. Every sum is float64, and this module defines its order: updates are added
one after another; a block's elements are added by `LANES` and `SEGMENT`. BLAS and `einsum` are not used, because the
order of their sums depends on alignment and machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics.layout import Layout, Mask, Vector

Float64 = NDArray[np.float64]

TILE = 1 << 15
"""Elements of a tile, over all rows: 256 KiB in float64."""
LANES = 16
"""Running sums of a segment: element k is added to sum k mod 16, as a processor's vector registers do."""
SEGMENT = 2048
"""Elements of a segment of a block, counted from the block's start; the sums of segments are added one by one."""
STRETCH = 64 * SEGMENT
"""Elements of a stretch of a block, counted from the block's start: the unit of inner products of all pairs of updates.
Its segments are added one by one; then the sums of stretches are added one by one. Threads share the work by stretches,
so their number does not change the result."""
COLUMNS = 256
"""The minimum number of columns of a tile, which bounds numpy's overhead per call when there are very many rows."""
LARGEST = float(np.finfo(np.float32).max)
"""The largest float32, to which the values of weighted sums are limited."""


@dataclass(frozen=True)
class Tile:
    """A range of coordinates, and the blocks that have elements in it.

    Attributes:
        columns: the coordinates, `t` of them.
        blocks: the indices of the blocks that have elements in the range, ascending.
        starts: the start of each of them, relative to the tile; the first is 0.
    """

    columns: slice
    blocks: NDArray[np.intp]
    starts: NDArray[np.intp]

    def any(self, flags: Mask) -> Mask:
        """Tell for each block whether a flag of `[n, t]` is set in it: `[n, len(blocks)]`."""
        found: Mask = np.logical_or.reduceat(flags, self.starts, axis=-1)
        return found

    def spread(self, values: Float64) -> Float64:
        """Expand a value per block of the model `[…, B]` to one per coordinate of the tile `[…, t]`."""
        ends = np.append(self.starts[1:], self.columns.stop - self.columns.start)
        return values[..., np.repeat(self.blocks, ends - self.starts)]


def tiles(layout: Layout, rows: int) -> Iterator[Tile]:
    """Divide the d coordinates into tiles of which `rows` rows fit a core's cache."""
    filled = np.flatnonzero(layout.sizes)  # reduceat treats an empty segment as a segment of one element
    offsets = layout.offsets[filled]
    step = max(COLUMNS, TILE // max(rows, 1))
    for start in range(0, layout.size, step):
        stop = min(start + step, layout.size)
        first = int(np.searchsorted(offsets, start, side="right")) - 1
        last = int(np.searchsorted(offsets, stop, side="left"))
        starts = np.maximum(offsets[first:last] - start, 0)
        yield Tile(slice(start, stop), filled[first:last], starts)


def mean(rows: Iterable[NDArray[Any]], count: int) -> Float64:
    """Return the mean of `count` rows `[t]` in float64, added in the order given.

    The sum of finite float32 values cannot overflow float64. So their mean is finite, also after it is rounded to
    float32. The sum starts at +0, so the sign of a zero in the rows does not affect it.
    """
    rows = iter(rows)
    total: Float64 = np.add(next(rows), 0.0, dtype=np.float64)
    for row in rows:
        total += row
    total /= count
    return total


def weighted_row(rows: Vector, weights: Float64) -> Vector:
    """Return the sum of rows `[n, t]` times their weights `[n, t]`, in their order, rounded to float32."""
    total = np.zeros(rows.shape[1])
    for row, weight in zip(rows, weights, strict=True):
        total += weight * row
    return rounded(total)


def rounded(values: Float64) -> Vector:
    """Round to float32, and limit to the largest float32: combiners refuse what is not finite."""
    return np.clip(values, -LARGEST, LARGEST).astype(np.float32)


def segment_sums(values: Float64) -> Float64:
    """Return the sum of each segment of a block's values `[n, k]`, which begin at a segment's start: `[n, segments]`.

    The last step adds the lanes of a segment: lanes 8 apart, then 4, 2 and 1 apart. Zeros that pad a lane do not change
    its sum.
    """
    n, k = values.shape
    whole = k // SEGMENT * SEGMENT
    sums = [_lanes(values[:, :whole].reshape(n, k // SEGMENT, SEGMENT // LANES, LANES))]
    if whole < k:
        rows = -(-(k - whole) // LANES)
        rest = np.zeros((n, rows * LANES))
        rest[:, : k - whole] = values[:, whole:]
        sums.append(_lanes(rest.reshape(n, 1, rows, LANES)))
    return np.concatenate(sums, axis=1)


def _lanes(values: Float64) -> Float64:
    """Sum values `[n, s, r, LANES]` over r, one after another, and then over the lanes: `[n, s]`."""
    sums: Float64 = np.add.reduce(values, axis=2)  # numpy adds row by row here: it adds pairwise on the last axis only
    while (half := sums.shape[-1] // 2) > 0:
        sums = sums[..., :half] + sums[..., half:]
    return sums[..., 0]


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


Accepts = Callable[[Products], Mask]
"""Returns the (update, block) pairs `[n, B]` that a rule accepts."""
