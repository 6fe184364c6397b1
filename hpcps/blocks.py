"""Numerics on the updates of a round: in tiles that fit a cache, and summed block by block.

Results depend neither on how the caller's arrays are aligned in memory nor on tiles or threads, so that a run over
MPI and one in process agree bit for bit, and so that the kernels give the very same. Every sum is float64 and of an
order that is laid down here: of updates, one after another; of a block's elements, by `LANES` and `SEGMENT`. BLAS and
`einsum` are avoided for that reason: they choose their order by alignment and machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcps.layout import Layout, Mask

Float64 = NDArray[np.float64]

TILE = 1 << 15
"""Elements of a tile, over all rows: 256 KiB in float64."""
LANES = 16
"""Running sums of a segment: element k is added to sum k mod 16, which is what a processor's vectors do."""
SEGMENT = 2048
"""Elements of a block, counted from its start, whose sum is taken by itself; then segment is added to segment."""
COLUMNS = 256
"""The fewest columns of a tile, so that with very many rows numpy's cost per call stays small."""


@dataclass(frozen=True)
class Tile:
    """A range of coordinates, and the blocks that have elements in it.

    Attributes:
        columns: the coordinates, `t` of them.
        blocks: the indices of the blocks with elements there, ascending.
        starts: where each of them starts, relative to the tile; the first is 0.
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
    """Cut the d coordinates into tiles that hold `rows` rows in a core's cache."""
    filled = np.flatnonzero(layout.sizes)  # reduceat takes an empty segment for one of a single element
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

    The sum of finite float32 values cannot overflow float64, so their mean is finite, and stays so when it is
    rounded to float32. The sum starts at +0: hence the sign of a zero among the rows leaves no trace.
    """
    rows = iter(rows)
    total: Float64 = np.add(next(rows), 0.0, dtype=np.float64)
    for row in rows:
        total += row
    total /= count
    return total


def segment_sums(values: Float64) -> Float64:
    """Return the sums of a block's values `[n, k]`, from a segment's start on: `[n, segments]`.

    The lanes of a segment are added up at last: those 8 apart, then 4, 2 and 1. Zeros that fill a lane leave no trace.
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
    """Sum values `[n, s, r, LANES]` over r, one after another, and then the lanes: `[n, s]`."""
    sums: Float64 = np.add.reduce(values, axis=2)  # not the fastest axis, so numpy adds row to row, not pairwise
    while (half := sums.shape[-1] // 2) > 0:
        sums = sums[..., :half] + sums[..., half:]
    return sums[..., 0]
