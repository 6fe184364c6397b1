"""Means of updates, added to the model as they are made: one pass over everything."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from hpcps.blocks import LANES, SEGMENT, Float64
from hpcps.kernels.columns import mean_of_columns
from hpcps.kernels.compiled import kernel
from hpcps.kernels.places import Integers
from hpcps.kernels.vectors import WIDTH, add_rows, bits_at, fence, floats_at, stream
from hpcps.layout import Vector

MAGNITUDE: Any = np.int32(0x7FFFFFFF)
FINITE: Any = np.int32(0x7F7FFFFF)
"""The largest bit pattern, without the sign, of a finite float32."""
NONE: Any = np.int32(0)
ABREAST: Any = 8
"""The most rows that are read side by side: more than that are followed less well than a few, one after another."""

TOGETHER = 4
"""Rows that are added at once where the sums do not stay in registers."""


@kernel
def largest(place: int, count: int) -> Any:
    """Return the largest bit pattern, without signs, of `count` float32 at an address."""
    bits = carray(bits_at(place), (count,))
    found = NONE
    for k in range(count):
        found = max(found, bits[k] & MAGNITUDE)
    return found


@kernel
def pass_on(values: int, count: int, out: int) -> None:
    """Write `count` float32 from one address to another past all caches, but for parts of a line at either end."""
    head = min(count, -out % WIDTH // 4)
    lines = (count - head) // LANES
    source, target = carray(floats_at(values), (count,)), carray(floats_at(out), (count,))
    for k in range(head):
        target[k] = source[k]
    stream(values + 4 * head, lines, out + 4 * head)
    for k in range(head + LANES * lines, count):
        target[k] = source[k]


@kernel
def deposit(values: Vector, count: int, base: int, out: int, past: bool) -> Any:
    """Write `count` values to `out`, added to what is at `base` if that is an address.

    With `past`, past all caches, and then the values themselves may change.

    Returns:
        The largest bit pattern, without signs, of what was written if there is a base.
    """
    if past:
        if base != 0:
            before = carray(floats_at(base), (count,))
            for k in range(count):
                values[k] += before[k]
        pass_on(values.ctypes.data, count, out)
        return largest(values.ctypes.data, count) if base != 0 else NONE
    target = carray(floats_at(out), (count,))
    if base == 0:
        for k in range(count):
            target[k] = values[k]
        return NONE
    if base == out:
        for k in range(count):
            target[k] += values[k]
    else:
        before = carray(floats_at(base), (count,))
        for k in range(count):
            target[k] = before[k] + values[k]
    return largest(out, count)


@kernel
def add_up(places: Integers, rows: int, count: int, total: Float64) -> None:
    """Sum `count` float32 at each of so many addresses into `total`, one after another, from +0."""
    whole, row = count // LANES * LANES, 0
    table, sums = places.ctypes.data, total.ctypes.data
    # Four at a time: the sums travel to the cache and back a quarter as often.
    while row + TOGETHER <= rows:
        add_rows(table + 8 * row, whole, sums, row == 0, TOGETHER)
        row += TOGETHER
    while row < rows:
        add_rows(table + 8 * row, whole, sums, row == 0, 1)
        row += 1
    for k in range(whole if rows > 0 else 0, count):
        total[k] = 0.0
    for row in range(rows):
        a = carray(floats_at(places[row]), (count,))
        for k in range(whole, count):
            total[k] += a[k]


@kernel
def average_segments(
    addresses: Integers,
    offsets: Integers,
    segments: Integers,
    first: int,
    last: int,
    divisors: Float64,
    base: int,
    out: int,
    past: bool,
) -> tuple[int, int]:
    """Take the sum of the updates over the block's divisor, segment by segment.

    Args:
        addresses: of each block of each update, 0 where it does not enter the sum: `[n, B]`.
        offsets: where each block begins in the whole vector: `[B + 1]`.
        segments: see `Places`.
        first: the number of the first segment.
        last: the number of the one after the last.
        divisors: of each block: `[B]`.
        base: the address of what the mean is added to, or 0.
        out: the address of where the result goes.
        past: whether it goes there past all caches.

    Returns:
        The largest bit patterns, without signs, of the means and of the result.
    """
    rows = len(addresses)
    places = np.empty(rows, np.int64)
    total, means = np.empty(SEGMENT, np.float64), np.empty(SEGMENT, np.float32)
    worst = result = NONE
    for number in range(first, last):
        block, start, stop = segments[number]
        count = stop - start
        present = 0
        for row in range(rows):
            if addresses[row, block] != 0:
                places[present] = addresses[row, block] + 4 * (start - offsets[block])
                present += 1
        divisor = divisors[block]
        base_at, out_at = base + 4 * start if base != 0 else 0, out + 4 * start
        columns = count - count % LANES if present <= ABREAST else 0
        if columns:
            # By a power of two: to multiply by its inverse is the same, and as fast as to add.
            exact = math.frexp(divisor)[0] == 0.5
            factor = 1.0 / divisor if exact else divisor
            target = means.ctypes.data if past else out_at
            mean, written = mean_of_columns(places.ctypes.data, present, columns, factor, exact, base_at, target)
            if past:
                pass_on(target, columns, out_at)
            worst, result = max(worst, mean), max(result, written)
            for row in range(present):
                places[row] += 4 * columns
        rest = count - columns
        add_up(places, present, rest, total)
        for k in range(rest):
            means[k] = np.float32(total[k] / divisor)
        worst = max(worst, largest(means.ctypes.data, rest))
        to = out_at + 4 * columns
        result = max(result, deposit(means, rest, base_at + 4 * columns if base != 0 else 0, to, past))
    if past:
        fence()
    return worst, result
