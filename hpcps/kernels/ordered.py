"""Rules that look at the order of the values of each coordinate."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import carray

from hpcps.blocks import LANES, Float64
from hpcps.kernels.compiled import kernel
from hpcps.kernels.means import FINITE, MAGNITUDE, NONE, deposit
from hpcps.kernels.places import Integers
from hpcps.kernels.vectors import bits_at, sort_columns, sort_two
from hpcps.layout import Vector

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
def add_rows(tile: Vector, first: int, last: int, count: int, total: Float64) -> None:
    """Add rows of a tile to the totals, one after another."""
    row = first
    while row + 4 <= last:
        a, b, c, d = tile[row], tile[row + 1], tile[row + 2], tile[row + 3]
        for k in range(count):
            total[k] = (((total[k] + a[k]) + b[k]) + c[k]) + d[k]
        row += 4
    while row < last:
        a = tile[row]
        for k in range(count):
            total[k] += a[k]
        row += 1


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
    classes, merges = network
    rows = len(addresses)
    width = max(LANES, TILE // rows // LANES * LANES)
    tile = np.zeros((rows, width), np.float32)
    total = np.empty(width, np.float64)
    centre = np.empty(width, np.float64)
    mean = np.empty(width, np.float32)
    result = NONE
    for number in range(first, last):
        block, begin, end = segments[number]
        for start in range(begin, end, width):
            count = min(width, end - start)
            worst = gather(addresses, block, start - offsets[block], count, tile)
            if worst > FINITE:
                return worst, result
            sort_tile(tile, classes, merges, count)
            for k in range(count):
                total[k] = 0.0
            if nearest:
                add_rows(tile, low, high, count, total)
                for k in range(count):
                    centre[k] = total[k] / (high - low)
                    total[k] = 0.0
                for pair in range(low):
                    small, large = tile[pair], tile[high + pair]
                    for k in range(count):
                        farther = centre[k] - small[k] > large[k] - centre[k]
                        total[k] += large[k] if farther else small[k]
                add_rows(tile, low, high, count, total)
                divisor = np.float64(high)
            else:
                add_rows(tile, low, high, count, total)
                divisor = np.float64(high - low)
            for k in range(count):
                mean[k] = np.float32(total[k] / divisor)
            result = max(result, deposit(mean, count, base + 4 * start if base != 0 else 0, out + 4 * start))
    return NONE, result
