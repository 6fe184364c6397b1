"""Means of ranks: the kernel of rules that sort the values of each coordinate."""

from __future__ import annotations

import numpy as np
from numba import carray
from numpy.typing import NDArray

from hpcps.numerics.blocks import LANES, SEGMENT
from hpcps.numerics.kernels.compiled import kernel
from hpcps.numerics.kernels.means import FINITE, NONE, store_result
from hpcps.numerics.kernels.networks import INTERLEAVED, LAST, load_and_sort, mean_of_rows, merge_rows, sort_pairs
from hpcps.numerics.kernels.places import Integers
from hpcps.numerics.kernels.vectors import WIDTH, fence, floats_at

Network = tuple[int, int, Integers, Integers]
"""A sorting network: height, classes, merges and pairs; see `ordered_segments`."""
Flags = NDArray[np.int32]
Work = tuple[NDArray[np.int32], Integers, Flags]
"""Work buffers: tiles of 16 sorted columns, the addresses of the rows, and 16 flags."""

TILE_BYTES = 1 << 12
"""Bytes that are sorted at a time, a part of the first-level cache; with many rows, more bytes."""


@kernel
def sort_columns(
    rows: int, sources: int, offset: int, count: int, place: int, stride: int, span: int, worst: int
) -> None:
    """Sort columns of up to 16 rows into a tile; see `load_and_sort`."""
    # Each number of rows has its own network, unrolled in registers.
    if rows == 1:
        load_and_sort(sources, offset, count, place, stride, span, worst, 1)
    elif rows == 2:
        load_and_sort(sources, offset, count, place, stride, span, worst, 2)
    elif rows == 3:
        load_and_sort(sources, offset, count, place, stride, span, worst, 3)
    elif rows == 4:
        load_and_sort(sources, offset, count, place, stride, span, worst, 4)
    elif rows == 5:
        load_and_sort(sources, offset, count, place, stride, span, worst, 5)
    elif rows == 6:
        load_and_sort(sources, offset, count, place, stride, span, worst, 6)
    elif rows == 7:
        load_and_sort(sources, offset, count, place, stride, span, worst, 7)
    elif rows == 8:
        load_and_sort(sources, offset, count, place, stride, span, worst, 8)
    elif rows == 9:
        load_and_sort(sources, offset, count, place, stride, span, worst, 9)
    elif rows == 10:
        load_and_sort(sources, offset, count, place, stride, span, worst, 10)
    elif rows == 11:
        load_and_sort(sources, offset, count, place, stride, span, worst, 11)
    elif rows == 12:
        load_and_sort(sources, offset, count, place, stride, span, worst, 12)
    elif rows == 13:
        load_and_sort(sources, offset, count, place, stride, span, worst, 13)
    elif rows == 14:
        load_and_sort(sources, offset, count, place, stride, span, worst, 14)
    elif rows == 15:
        load_and_sort(sources, offset, count, place, stride, span, worst, 15)
    elif rows == 16:
        load_and_sort(sources, offset, count, place, stride, span, worst, 16)


@kernel
def tiles_of(height: int) -> int:
    """Return the number of tiles of `height` rows and 16 columns that are sorted at a time."""
    return max(1, TILE_BYTES // (WIDTH * height * INTERLEAVED)) * INTERLEAVED


@kernel
def mean_of_ranks(count: int, network: Network, ranks: tuple[int, int, bool], work: Work, out: int) -> None:
    """Compute the mean of the ranks of `count` groups of 16 columns and write it to `out`.

    Row k belongs to class k mod `classes`. The rows of each class are sorted while they are loaded; then classes are
    merged, and the remaining pairs are compared.
    """
    height, classes, merges, pairs = network
    low, high, nearest = ranks
    tile, sources, flags = work
    # Rows of 16 columns are as long as a cache line, and are aligned so that each is in one line.
    place = (tile.ctypes.data + WIDTH - 1) // WIDTH * WIDTH
    span = WIDTH * height
    step = tiles_of(height)
    for start in range(0, count, step):
        taken = min(step, count - start)
        table = sources.ctypes.data
        for first in range(classes):
            rows = (len(sources) - first + classes - 1) // classes
            begin = place + WIDTH * first
            sort_columns(rows, table, WIDTH * start, taken, begin, WIDTH * classes, span, flags.ctypes.data)
            table += 8 * rows
        for k in range(taken):
            for merge in range(len(merges)):
                merge_rows(place + span * k + merges[merge, 0], merges[merge, 1], merges[merge, 2])
        # The last group of tiles may include tiles with old content; their means are not used.
        for k in range(0, taken, INTERLEAVED):
            sort_pairs(pairs.ctypes.data, len(pairs), place + span * k, span)
            mean_of_rows(place + span * k, span, low, high, nearest, out + WIDTH * (start + k))


@kernel
def find_rows(addresses: Integers, block: int, offset: int, classes: int, zeros: int, sources: Integers) -> None:
    """Set `sources` to the addresses of a segment in each row, class by class; absent rows point to zeros."""
    position = 0
    for first in range(classes):
        for row in range(first, len(addresses), classes):
            place = addresses[row, block]
            sources[position] = zeros if place == 0 else place + 4 * offset
            position += 1


@kernel
def pad_rows(sources: Integers, offset: int, count: int, spare: int) -> None:
    """Copy the last `count` columns of the rows, fewer than 16, to `spare`, pad them with zeros, and point there."""
    for row in range(len(sources)):
        place = spare + WIDTH * row
        source, target = carray(floats_at(sources[row] + offset), (count,)), carray(floats_at(place), (LANES,))
        for k in range(LANES):
            target[k] = source[k] if k < count else np.float32(0.0)
        sources[row] = place


@kernel
def ordered_segments(
    addresses: Integers,
    offsets: Integers,
    segments: Integers,
    first: int,
    last: int,
    network: Network,
    low: int,
    high: int,
    nearest: bool,
    base: int,
    out: int,
    nontemporal: bool,
) -> tuple[int, int]:
    """Compute the mean of the sorted values of some ranks, or of the values nearest to it, segment by segment.

    Args:
        addresses: see `average_segments`, as for the next four.
        offsets: the start of each block.
        segments: see `Places`.
        first: the number of the first segment.
        last: the number after that of the last segment.
        network: (height, classes, merges, pairs). A tile has `height` rows; rows without an update hold the largest
            key. Each of `classes` classes of rows is sorted while it is loaded. Then `merges` `[m, 3]` (begin, step,
            odd; see `merge_rows`) are merged and `pairs` `[p, 2]` are compared; both are offsets in bytes in a tile.
        low: the first rank of the mean.
        high: the rank after the last.
        nearest: whether to compute the mean of the `high` values nearest to that mean instead (`low` are left out).
        base: the address of the vector to which the result is added, or 0.
        out: the address of the result.
        nontemporal: whether it is written with non-temporal stores.

    Returns:
        A bit pattern above `FINITE` if an update is not finite, else 0; and the largest bit pattern, without signs, of
        the result. Values that are not finite cannot be sorted, so the kernel returns at the first segment with one.
    """
    rows = len(addresses)
    tile = np.full((tiles_of(network[0]) * network[0] + 1) * LANES, LAST, np.int32)
    spare = np.empty(rows * LANES, np.float32)
    zeros, mean = np.zeros(SEGMENT, np.float32), np.empty(SEGMENT + INTERLEAVED * LANES, np.float32)
    sources, flags = np.empty(rows, np.int64), np.empty(LANES, np.int32)
    work, ranks = (tile, sources, flags), (low, high, nearest)
    result = NONE
    for number in range(first, last):
        block, start, stop = segments[number]
        count = stop - start
        whole = count // LANES * LANES
        flags[:] = 0
        find_rows(addresses, block, start - offsets[block], network[1], zeros.ctypes.data, sources)
        mean_of_ranks(whole // LANES, network, ranks, work, mean.ctypes.data)
        if whole < count:
            pad_rows(sources, 4 * whole, count - whole, spare.ctypes.data)
            mean_of_ranks(1, network, ranks, work, mean.ctypes.data + 4 * whole)
        for k in range(LANES):
            if flags[k] > FINITE:
                return flags[k], result
        result = max(
            result, store_result(mean, count, base + 4 * start if base != 0 else 0, out + 4 * start, nontemporal)
        )
    if nontemporal:
        fence()
    return NONE, result
