"""Kernels for the products of updates with a vector, for screening and for scaling."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics.blocks import LANES, SEGMENT, Float64
from hpcps.numerics.kernels.compiled import kernel
from hpcps.numerics.kernels.memory import floats, largest, write
from hpcps.numerics.kernels.pointers import Integers, Table
from hpcps.numerics.kernels.registers import TOGETHER, weigh_rows
from hpcps.numerics.layout import Mask, Vector


@kernel
def padded(place: int, count: int, spare: Vector) -> int:
    """Return an address that holds these `count` float32, padded with zeros to a multiple of `LANES`."""
    if count % LANES == 0:
        return place
    values = floats(place, count)
    for k in range(count):
        spare[k] = values[k]
    for k in range(count, count + LANES - count % LANES):
        spare[k] = 0.0
    return spare.ctypes.data


@kernel
def multiply_segments(
    table: Table,
    first: int,
    last: int,
    v: int,
    sums: Float64,
    accepted: Mask,
    divisors: Float64,
    base: int,
    out: int,
    results: NDArray[np.int32],
) -> None:
    """Compute the products of the updates with v, segment by segment, and the mean of some updates in the same pass.

    Args:
        table: see `PointerTable`.
        first: the number of the first segment.
        last: the number after that of the last segment.
        v: the address of v, or 0 for zero.
        sums: the output: <u, v> and |u|^2 of each segment of each update and, last, of u = v: `[s, n + 1, 2]`.
        accepted: the updates in each block's mean: `[n, B]`.
        divisors: the divisor of each block's mean, 0 if no mean is wanted: `[B]`.
        base: the address of the vector to which the mean is added, or 0.
        out: the address of the result.
        results: the output: the largest bit pattern, without signs, of each segment's result: `[s]`.
    """
    addresses, offsets, segments = table
    rows = len(addresses)
    zeros, total, mean = np.zeros(SEGMENT, np.float32), np.empty(SEGMENT), np.empty(SEGMENT, np.float32)
    places, weights = np.empty(TOGETHER, np.int64), np.empty(TOGETHER)
    products, spare = np.empty((TOGETHER + 1, 2)), np.empty((TOGETHER + 1, SEGMENT), np.float32)
    for number in range(first, last):
        block, start, stop = segments[number]
        count = stop - start
        whole = (count + LANES - 1) // LANES * LANES
        own = padded(v + 4 * start, count, spare[TOGETHER]) if v != 0 else zeros.ctypes.data
        total[:] = 0.0
        for begin in range(0, max(rows, 1), TOGETHER):
            for k in range(TOGETHER):
                row = begin + k
                there = row < rows and addresses[row, block] != 0
                place = addresses[row, block] + 4 * (start - offsets[block]) if there else zeros.ctypes.data
                places[k] = padded(place, count, spare[k])
                weights[k] = 1.0 if there and accepted[row, block] else 0.0
            weigh_rows(places.ctypes.data, own, whole, weights.ctypes.data, total.ctypes.data, products.ctypes.data)
            for k in range(min(TOGETHER, rows - begin)):
                sums[number, begin + k, 0], sums[number, begin + k, 1] = products[k, 0], products[k, 1]
        sums[number, rows, 0] = sums[number, rows, 1] = products[TOGETHER, 0]
        divisor = divisors[block]
        if divisor != 0.0:
            for k in range(count):
                mean[k] = np.float32(total[k] / divisor)
            results[number] = write(mean[:count], start, base, out)


@kernel
def add_segments(segments: Integers, sums: Float64, totals: Float64) -> None:
    """Add the sums `[s, …, 2]` of the segments, one after another, to the totals of their blocks `[B, …, 2]`."""
    for number in range(len(segments)):
        totals[segments[number, 0]] += sums[number]


@kernel
def screen_segments(table: Table, first: int, last: int, worst: NDArray[np.int32]) -> None:
    """Find the largest bit pattern, without signs, of each segment of each update: `[s, n]`."""
    addresses, offsets, segments = table
    for number in range(first, last):
        block, start, stop = segments[number]
        for row in range(len(addresses)):
            place = addresses[row, block]
            if place != 0:
                worst[number, row] = largest(floats(place + 4 * (start - offsets[block]), stop - start))


@kernel
def scale_segments(table: Table, first: int, last: int, factors: Float64, out: int) -> None:
    """Multiply each block of one update by its factor `[B]`, and round; unused blocks are zero.

    `out` may be the address of the update.
    """
    addresses, offsets, segments = table
    for number in range(first, last):
        block, start, stop = segments[number]
        target = floats(out + 4 * start, stop - start)
        place = addresses[0, block]
        if place == 0:
            target[:] = 0.0
            continue
        values = floats(place + 4 * (start - offsets[block]), stop - start)
        for k in range(stop - start):
            target[k] = np.float32(factors[block] * values[k])
