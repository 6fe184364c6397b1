"""Means of updates, added to the model in the same pass."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import carray

from hpcps.numerics.blocks import LANES, SEGMENT, Float64
from hpcps.numerics.kernels.columns import mean_of_columns
from hpcps.numerics.kernels.compiled import kernel
from hpcps.numerics.kernels.places import Integers
from hpcps.numerics.kernels.vectors import WIDTH, add_rows, bits_at, fence, floats_at, stream
from hpcps.numerics.layout import Vector

MAGNITUDE: Any = np.int32(0x7FFFFFFF)
FINITE: Any = np.int32(0x7F7FFFFF)
"""The largest bit pattern, without the sign, of a finite float32."""
NONE: Any = np.int32(0)
MOST_STREAMS: Any = 8
"""The maximum number of rows read in parallel; with more, the prefetcher works worse than with a few after another."""

TOGETHER = 4
"""Rows that are added per pass over the sums where the sums do not stay in registers."""


@kernel
def largest(place: int, count: int) -> Any:
    """Return the largest bit pattern, without signs, of `count` float32 at an address."""
    bits = carray(bits_at(place), (count,))
    found = NONE
    for k in range(count):
        found = max(found, bits[k] & MAGNITUDE)
    return found


@kernel
def copy_nontemporal(values: int, count: int, out: int) -> None:
    """Copy `count` float32 with non-temporal stores, except for incomplete cache lines at either end."""
    head = min(count, -out % WIDTH // 4)
    lines = (count - head) // LANES
    source, target = carray(floats_at(values), (count,)), carray(floats_at(out), (count,))
    for k in range(head):
        target[k] = source[k]
    stream(values + 4 * head, lines, out + 4 * head)
    for k in range(head + LANES * lines, count):
        target[k] = source[k]


@kernel
def store_result(values: Vector, count: int, base: int, out: int, nontemporal: bool) -> Any:
    """Write `count` values to the address `out`, added to the values at the address `base` if it is not 0.

    With `nontemporal`, non-temporal stores are used, and `values` may be overwritten.

    Returns:
        The largest bit pattern, without signs, of the written values if there is a base, else 0.
    """
    if nontemporal:
        if base != 0:
            before = carray(floats_at(base), (count,))
            for k in range(count):
                values[k] += before[k]
        copy_nontemporal(values.ctypes.data, count, out)
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
def sum_rows(places: Integers, rows: int, count: int, total: Float64) -> None:
    """Sum rows of `count` float32, given by their addresses, into `total`, one after another, from +0."""
    whole, row = count // LANES * LANES, 0
    table, sums = places.ctypes.data, total.ctypes.data
    # Four rows per pass, so that the sums are loaded and stored a quarter as often.
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
    nontemporal: bool,
) -> tuple[int, int]:
    """Compute the sum of the updates divided by the block's divisor, segment by segment.

    Args:
        addresses: the address of each block of each update, 0 if it is not in the sum: `[n, B]`.
        offsets: the start of each block in the whole vector: `[B + 1]`.
        segments: see `Places`.
        first: the number of the first segment.
        last: the number after that of the last segment.
        divisors: the divisor of each block: `[B]`.
        base: the address of the vector to which the mean is added, or 0.
        out: the address of the result.
        nontemporal: whether it is written with non-temporal stores.

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
        columns = count - count % LANES if present <= MOST_STREAMS else 0
        if columns:
            # Multiplying by the inverse of a power of two gives the same result, and is as fast as adding.
            exact = math.frexp(divisor)[0] == 0.5
            factor = 1.0 / divisor if exact else divisor
            target = means.ctypes.data if nontemporal else out_at
            mean, written = mean_of_columns(places.ctypes.data, present, columns, factor, exact, base_at, target)
            if nontemporal:
                copy_nontemporal(target, columns, out_at)
            worst, result = max(worst, mean), max(result, written)
            for row in range(present):
                places[row] += 4 * columns
        rest = count - columns
        sum_rows(places, present, rest, total)
        for k in range(rest):
            means[k] = np.float32(total[k] / divisor)
        worst = max(worst, largest(means.ctypes.data, rest))
        to = out_at + 4 * columns
        result = max(result, store_result(means, rest, base_at + 4 * columns if base != 0 else 0, to, nontemporal))
    if nontemporal:
        fence()
    return worst, result
