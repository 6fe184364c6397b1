"""Rules that look at the order of the values of each coordinate."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray
from numpy.typing import NDArray

from hpcps.blocks import LANES, SEGMENT
from hpcps.kernels.compiled import kernel
from hpcps.kernels.means import FINITE, MAGNITUDE, NONE, deposit
from hpcps.kernels.places import Integers
from hpcps.kernels.vectors import bits_at, mean_of_rows, sort_columns, sort_two, take_and_sort
from hpcps.layout import Vector

Work = tuple[Vector, Integers, Vector, NDArray[np.int32]]
"""What the kernels of few rows work with: a tile, the rows' addresses, zeros for one that is absent, and flags."""

TILE = 8192
"""Elements that are sorted at a time, over all rows: 32 KiB, which the first-level cache of every processor holds."""


@kernel
def gather(addresses: Integers, block: int, offset: int, count: int, tile: Vector) -> Any:
    """Copy `count` values of each update, zeros where it has none, into the rows of a tile.

    Returns:
        Their largest bit pattern, without signs.
    """
    worst = NONE
    for row in range(len(addresses)):
        target = carray(bits_at(tile.ctypes.data + row * tile.strides[0]), (count,))
        if addresses[row, block] == 0:
            for k in range(count):
                target[k] = 0
            continue
        source = carray(bits_at(addresses[row, block] + 4 * offset), (count,))
        found = NONE
        for k in range(count):
            bits = source[k]
            target[k] = bits
            found = max(found, bits & MAGNITUDE)
        worst = max(worst, found)
    return worst


@kernel
def sort_rows(place: int, stride: int, rows: int, count: int) -> None:
    """Sort up to 16 rows that lie `stride` bytes apart, `count` columns (rounded up to 16 of them)."""
    for k in range(place, place + 4 * count, 4 * LANES):
        # Each is a network of its own, unrolled in registers; the processor learns at once which of them it is.
        if rows == 2:
            sort_columns(k, stride, 2)
        elif rows == 3:
            sort_columns(k, stride, 3)
        elif rows == 4:
            sort_columns(k, stride, 4)
        elif rows == 5:
            sort_columns(k, stride, 5)
        elif rows == 6:
            sort_columns(k, stride, 6)
        elif rows == 7:
            sort_columns(k, stride, 7)
        elif rows == 8:
            sort_columns(k, stride, 8)
        elif rows == 9:
            sort_columns(k, stride, 9)
        elif rows == 10:
            sort_columns(k, stride, 10)
        elif rows == 11:
            sort_columns(k, stride, 11)
        elif rows == 12:
            sort_columns(k, stride, 12)
        elif rows == 13:
            sort_columns(k, stride, 13)
        elif rows == 14:
            sort_columns(k, stride, 14)
        elif rows == 15:
            sort_columns(k, stride, 15)
        elif rows == 16:
            sort_columns(k, stride, 16)


@kernel
def take_columns(sources: Integers, offset: int, place: int, worst: int) -> None:
    """Sort 16 columns of up to 16 rows from where they lie to a small tile; see `take_and_sort`."""
    rows, table = len(sources), sources.ctypes.data
    if rows == 1:
        take_and_sort(table, offset, place, worst, 1)
    elif rows == 2:
        take_and_sort(table, offset, place, worst, 2)
    elif rows == 3:
        take_and_sort(table, offset, place, worst, 3)
    elif rows == 4:
        take_and_sort(table, offset, place, worst, 4)
    elif rows == 5:
        take_and_sort(table, offset, place, worst, 5)
    elif rows == 6:
        take_and_sort(table, offset, place, worst, 6)
    elif rows == 7:
        take_and_sort(table, offset, place, worst, 7)
    elif rows == 8:
        take_and_sort(table, offset, place, worst, 8)
    elif rows == 9:
        take_and_sort(table, offset, place, worst, 9)
    elif rows == 10:
        take_and_sort(table, offset, place, worst, 10)
    elif rows == 11:
        take_and_sort(table, offset, place, worst, 11)
    elif rows == 12:
        take_and_sort(table, offset, place, worst, 12)
    elif rows == 13:
        take_and_sort(table, offset, place, worst, 13)
    elif rows == 14:
        take_and_sort(table, offset, place, worst, 14)
    elif rows == 15:
        take_and_sort(table, offset, place, worst, 15)
    elif rows == 16:
        take_and_sort(table, offset, place, worst, 16)


@kernel
def sort_tile(tile: Vector, classes: int, merges: Integers, count: int) -> None:
    """Sort the columns of a tile: rows `classes` apart in registers, then what is left of the network, pair by pair."""
    place, stride, rows = tile.ctypes.data, tile.strides[0], len(tile)
    for first in range(classes):
        sort_rows(place + first * stride, classes * stride, (rows - first + classes - 1) // classes, count)
    for pair in range(len(merges)):
        low, high = place + merges[pair, 0] * stride, place + merges[pair, 1] * stride
        for k in range(0, 4 * count, 4 * LANES):
            sort_two(low + k, high + k)


@kernel
def few_rows(
    addresses: Integers, block: int, offset: int, count: int, ranks: tuple[int, int, bool], work: Work, mean: Vector
) -> Any:
    """Take a segment's mean of the ranks of up to 16 updates, straight from where they lie.

    Returns:
        The largest bit pattern, without signs, of the updates.
    """
    low, high, nearest = ranks
    tile, sources, zeros, flags = work
    for row in range(len(addresses)):
        place = addresses[row, block]
        sources[row] = zeros.ctypes.data if place == 0 else place + 4 * offset
    flags[:] = 0
    place, worst, out = tile.ctypes.data, flags.ctypes.data, mean.ctypes.data
    whole = count // LANES * LANES
    for k in range(0, 4 * whole, 4 * LANES):
        take_columns(sources, k, place, worst)
        mean_of_rows(place, 4 * LANES, low, high, nearest, out + k)
    found = NONE
    for k in range(LANES):
        found = max(found, flags[k])
    if whole < count:
        found = max(found, gather(addresses, block, offset + whole, count - whole, tile))
        sort_rows(place, 4 * LANES, len(addresses), LANES)
        mean_of_rows(place, 4 * LANES, low, high, nearest, out + 4 * whole)
    return found


@kernel
def many_rows(
    addresses: Integers,
    block: int,
    offset: int,
    count: int,
    network: tuple[int, Integers],
    ranks: tuple[int, int, bool],
    tile: Vector,
    mean: Vector,
) -> Any:
    """Do the same for any number of updates, by tiles that are sorted in the first-level cache."""
    low, high, nearest = ranks
    classes, merges = network
    width = tile.shape[1] - LANES
    worst = NONE
    for start in range(0, count, width):
        columns = min(width, count - start)
        worst = max(worst, gather(addresses, block, offset + start, columns, tile))
        sort_tile(tile, classes, merges, columns)
        for k in range(0, 4 * columns, 4 * LANES):
            mean_of_rows(tile.ctypes.data + k, tile.strides[0], low, high, nearest, mean.ctypes.data + 4 * start + k)
    return worst


@kernel
def ordered_segments(
    addresses: Integers,
    offsets: Integers,
    segments: Integers,
    first: int,
    last: int,
    network: tuple[int, Integers],
    low: int,
    high: int,
    nearest: bool,
    base: int,
    out: int,
) -> tuple[int, int]:
    """Take the mean of the sorted values from one rank to another, or of those nearest to it, segment by segment.

    Args:
        addresses: see `average_segments`, as for the next four.
        offsets: where each block begins.
        segments: see `Places`.
        first: the number of the first segment.
        last: the number of the one after the last.
        network: how many classes are sorted in registers, and the pairs that are compared then `[p, 2]`.
        low: the first rank of the mean.
        high: the one after the last.
        nearest: whether not this mean is wanted but that of the `high` values nearest to it (`low` are left out).
        base: the address of what the result is added to, or 0.
        out: the address of where the result goes.

    Returns:
        The largest bit patterns, without signs, of the updates and of the result. The first may be less than that if
        it is not finite: what is not cannot be sorted, and nothing more is made of it.
    """
    rows = len(addresses)
    few = network[0] == 1
    # A little wider than what is used of it, or all rows would compete for the same places in the cache.
    width = LANES if few else max(LANES, TILE // rows // LANES * LANES) + LANES
    tile = np.zeros((rows, width), np.float32)
    work = (tile, np.empty(rows, np.int64), np.zeros(SEGMENT, np.float32), np.empty(LANES, np.int32))
    ranks = (low, high, nearest)
    mean = np.empty(SEGMENT, np.float32)
    result = NONE
    for number in range(first, last):
        block, start, stop = segments[number]
        count, offset = stop - start, start - offsets[block]
        if few:
            worst = few_rows(addresses, block, offset, count, ranks, work, mean)
        else:
            worst = many_rows(addresses, block, offset, count, network, ranks, tile, mean)
        if worst > FINITE:
            return worst, result
        result = max(result, deposit(mean, count, base + 4 * start if base != 0 else 0, out + 4 * start))
    return NONE, result
