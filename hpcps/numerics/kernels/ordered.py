"""Means of ranks: the kernel of rules that sort the values of each coordinate."""

from __future__ import annotations

from typing import Any

import numpy as np

from hpcps.numerics.blocks import LANES, SEGMENT, Float64
from hpcps.numerics.kernels.compiled import kernel
from hpcps.numerics.kernels.memory import NONE, floats, write
from hpcps.numerics.kernels.pointers import FINITE, Integers, Table
from hpcps.numerics.kernels.registers import sort_in_registers
from hpcps.numerics.layout import Vector

Network = tuple[int, int, Integers]
"""Width, classes and pairs `[p, 2]`: row k belongs to class k mod `classes`. The `width` rows of each class are sorted
first, then the pairs of rows, one after another."""

COLUMNS = 128
"""Columns that are sorted at a time, so that a tile of them fits the first-level cache."""
LAST: Any = np.finfo(np.float32).max
NOT_FINITE: Any = FINITE + np.int32(1)


@kernel
def sort_classes(network: Network, places: Integers, tile: Vector, dirty: Vector) -> None:
    """Load the rows at some addresses and sort the rows of each class into the tile."""
    width, classes, _ = network
    for first in range(classes):
        table, target = places.ctypes.data + 8 * first, tile.ctypes.data + 4 * COLUMNS * first
        stride = 4 * COLUMNS * classes
        if width == 4:
            sort_in_registers(table, classes, COLUMNS, target, stride, dirty.ctypes.data, 4)
        elif width == 8:
            sort_in_registers(table, classes, COLUMNS, target, stride, dirty.ctypes.data, 8)
        else:
            sort_in_registers(table, classes, COLUMNS, target, stride, dirty.ctypes.data, 16)


@kernel
def sort_pairs(pairs: Integers, tile: Vector) -> None:
    """Sort pairs of rows of the tile, one after another."""
    for number in range(len(pairs)):
        small, large = tile[pairs[number, 0]], tile[pairs[number, 1]]
        for k in range(COLUMNS):
            a, b = small[k], large[k]
            small[k] = a if a < b else b
            large[k] = b if a < b else a


@kernel
def mean_of_ranks(tile: Vector, ranks: tuple[int, int, bool], work: tuple[Float64, Float64], mean: Vector) -> None:
    """Compute the mean of sorted rows; for the ranks see `ordered_segments`."""
    low, high, nearest = ranks
    total, centre = work
    count = high - low
    total[:] = 0.0
    for row in range(low, high - 1, 2):
        for k in range(COLUMNS):
            total[k] = total[k] + tile[row, k] + tile[row + 1, k]
    if count % 2:
        for k in range(COLUMNS):
            total[k] += tile[high - 1, k]
    if nearest:
        for k in range(COLUMNS):
            centre[k] = total[k] / count
        for row in range(low):
            small, large = tile[row], tile[high + row]
            for k in range(COLUMNS):
                total[k] += large[k] if centre[k] - small[k] > large[k] - centre[k] else small[k]
        count = high
    for k in range(COLUMNS):
        mean[k] = np.float32(total[k] / count)


@kernel
def mean_around_median(
    tile: Vector, n: int, middle: tuple[int, int, bool], keep: int, work: tuple[Float64, Float64], mean: Vector
) -> None:
    """Compute the mean of the `keep` of n sorted rows nearest to their median; see `definitions.mean_around_median`."""
    low, high = middle[0], middle[1] - 1
    total, centre = work
    for k in range(COLUMNS):
        total[k] = 0.0
        centre[k] = tile[low, k] if low == high else (0.0 + tile[low, k] + tile[high, k]) / 2
    for row in range(n):
        here, above, below = tile[row], tile[min(row + keep, n - 1)], tile[max(row - keep, 0)]
        may_drop, may_add = row < n - keep, row >= keep
        for k in range(COLUMNS):
            dropped = may_drop and centre[k] - here[k] > above[k] - centre[k]
            added = not may_add or centre[k] - below[k] > here[k] - centre[k]
            total[k] += here[k] if added and not dropped else 0.0
    for k in range(COLUMNS):
        mean[k] = np.float32(total[k] / keep)


@kernel
def ordered_segments(
    table: Table,
    first: int,
    last: int,
    network: Network,
    ranks: tuple[int, int, bool],
    keep: int,
    base: int,
    out: int,
) -> tuple[int, int]:
    """Compute the mean of the sorted values of some ranks, or of the values nearest to it, segment by segment.

    Args:
        table: see `PointerTable`.
        first: the number of the first segment.
        last: the number after that of the last segment.
        network: how the rows are sorted.
        ranks: the first rank of the mean; the rank after the last; and whether to compute the mean of as many values as
            that rank, nearest to the first mean, instead.
        keep: if it is not 0, compute the mean of as many values, nearest to the first mean, instead; the first mean is
            that of one or two ranks.
        base: the address of the vector to which the result is added, or 0.
        out: the address of the result.

    Returns:
        A bit pattern above `FINITE` if an update is not finite, else 0; and the largest bit pattern, without signs, of
        the result. Values that are not finite cannot be sorted, so the kernel returns at the first segment with one.
    """
    addresses, offsets, segments = table
    height = network[0] * network[1]
    tile, edge = np.zeros((height, COLUMNS), np.float32), np.zeros((height, COLUMNS), np.float32)
    zeros, beyond = np.zeros(SEGMENT, np.float32), np.full(SEGMENT, LAST, np.float32)
    starts, places = np.empty(height, np.int64), np.empty(height, np.int64)
    work, mean = (np.empty(COLUMNS), np.empty(COLUMNS)), np.empty(COLUMNS, np.float32)
    dirty = np.zeros(LANES, np.float32)
    result = NONE
    for number in range(first, last):
        block, start, stop = segments[number]
        starts[:] = beyond.ctypes.data
        for row in range(len(addresses)):
            place = addresses[row, block]
            starts[row] = place + 4 * (start - offsets[block]) if place != 0 else zeros.ctypes.data
        for begin in range(0, stop - start, COLUMNS):
            count = min(COLUMNS, stop - start - begin)
            for row in range(height):
                places[row] = starts[row] + 4 * begin
                if count < COLUMNS:
                    values = floats(places[row], count)
                    for k in range(count):
                        edge[row, k] = values[k]
                    places[row] = edge.ctypes.data + 4 * COLUMNS * row
            sort_classes(network, places, tile, dirty)
            sort_pairs(network[2], tile)
            if keep:
                mean_around_median(tile, len(addresses), ranks, keep, work, mean)
            else:
                mean_of_ranks(tile, ranks, work, mean)
            result = max(result, write(mean[:count], start + begin, base, out))
        for k in range(LANES):
            if dirty[k] != 0.0:
                return NOT_FINITE, result
    return NONE, result
