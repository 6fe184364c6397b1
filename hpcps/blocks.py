"""Numerics on a matrix of updates `[n, d]`: in tiles that fit a cache, and summed block by block.

Results depend neither on how the caller's arrays are aligned in memory nor on the number of threads, so that
a run over MPI and one in process agree bit for bit: input is read by elementwise operations only, and sums
are taken of arrays made here, row after row or in numpy's pairwise order, which depends on the length alone.
BLAS and `einsum` are avoided for that reason: they may choose their order of summation by alignment.
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

    def sums(self, values: Float64) -> Float64:
        """Sum values `[n, t]` over each block: `[n, len(blocks)]`."""
        sums: Float64 = np.add.reduceat(values, self.starts, axis=-1)
        return sums

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
