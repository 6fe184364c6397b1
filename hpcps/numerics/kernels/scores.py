"""Kernels for the products of updates with a vector, for screening and for scaling."""

from __future__ import annotations

import math

import numpy as np
from numba import carray
from numpy.typing import NDArray

from hpcps.numerics.blocks import LANES, SEGMENT, Float64
from hpcps.numerics.kernels.compiled import kernel
from hpcps.numerics.kernels.means import largest, store_result
from hpcps.numerics.kernels.places import Integers
from hpcps.numerics.kernels.vectors import fence, floats_at, products_of, weigh_rows
from hpcps.numerics.layout import Vector

Bits = NDArray[np.int32]

TOGETHER = 4
"""Rows that are processed at once: the sums of so many rows fit the registers of AVX-512."""


@kernel
def padded(place: int, count: int, spare: Vector) -> int:
    """Return an address that holds these `count` float32, padded with zeros to a multiple of 16."""
    if count % LANES == 0:
        return place
    source = carray(floats_at(place), (count,))
    for k in range(count):
        spare[k] = source[k]
    for k in range(count, count + LANES - count % LANES):
        spare[k] = 0.0
    return spare.ctypes.data


@kernel
def multiply_segments(
    addresses: Integers,
    offsets: Integers,
    segments: Integers,
    first: int,
    last: int,
    v: int,
    sums: Float64,
    weights: Float64,
    base: int,
    out: int,
    nontemporal: bool,
    results: Bits,
) -> None:
    """Compute the products of the updates with v, segment by segment, and the mean of some updates in the same pass.

    Args:
        addresses: see `average_segments`, as for the next four.
        offsets: the start of each block.
        segments: see `Places`.
        first: the number of the first segment.
        last: the number after that of the last segment.
        v: the address of v.
        sums: output: <u, v> and |u|^2 of each update and, last, of u = v, for each segment: `[s, n + 1, 2]`.
        weights: 1 for updates in the mean of a block, 0 for others; and, last, the divisor of their sum, which is 0 if
            the block's mean is not computed: `[B, n + 1]`.
        base: the address of the vector to which the mean is added, or 0.
        out: the address of the result.
        nontemporal: whether it is written with non-temporal stores.
        results: output: the largest bit pattern, without signs, of the written values of each segment: `[s]`.
    """
    rows = len(addresses)
    spare, other = np.empty((TOGETHER, SEGMENT), np.float32), np.empty(SEGMENT, np.float32)
    places, total, mean = np.empty(rows, np.int64), np.empty(SEGMENT, np.float64), np.empty(SEGMENT, np.float32)
    numbers, shares, found = np.empty(rows, np.int64), np.empty(rows, np.float64), np.empty((rows + 1, 2), np.float64)
    for number in range(first, last):
        block, start, stop = segments[number]
        count = stop - start
        whole = (count + LANES - 1) // LANES * LANES
        own = padded(v + 4 * start, count, other)
        present = 0
        for row in range(rows):
            sums[number, row, 0] = sums[number, row, 1] = 0.0
            if addresses[row, block] != 0:
                places[present] = addresses[row, block] + 4 * (start - offsets[block])
                numbers[present], shares[present] = row, weights[block, row]
                present += 1
        row = 0
        while row < present:
            taken = TOGETHER if present - row >= TOGETHER else 1
            for k in range(taken):
                places[row + k] = padded(places[row + k], count, spare[k])
            at, share, to = places.ctypes.data + 8 * row, shares.ctypes.data + 8 * row, found.ctypes.data + 16 * row
            if taken == TOGETHER:
                weigh_rows(at, own, whole, share, total.ctypes.data, row == 0, to, TOGETHER)
            else:
                weigh_rows(at, own, whole, share, total.ctypes.data, row == 0, to, 1)
            row += taken
        for row in range(present):
            sums[number, numbers[row], 0], sums[number, numbers[row], 1] = found[row, 0], found[row, 1]
        if present == 0:
            found[0, 0], found[0, 1] = products_of(own, own, whole)
            total[:] = 0.0
        sums[number, rows, 0], sums[number, rows, 1] = found[present, 0], found[present, 1]
        divisor = weights[block, rows]
        if divisor != 0.0:
            # Multiplying by the inverse of a power of two gives the same result, and is as fast as adding.
            if math.frexp(divisor)[0] == 0.5:
                for k in range(count):
                    mean[k] = np.float32(total[k] * (1.0 / divisor))
            else:
                for k in range(count):
                    mean[k] = np.float32(total[k] / divisor)
            results[number] = store_result(
                mean, count, base + 4 * start if base != 0 else 0, out + 4 * start, nontemporal
            )
    if nontemporal:
        fence()


@kernel
def add_segments(segments: Integers, sums: Float64, totals: Float64) -> None:
    """Add the sums `[s, …, 2]` of the segments, one after another, to the totals of their blocks `[B, …, 2]`."""
    for number in range(len(segments)):
        block = segments[number, 0]
        for row in range(sums.shape[1]):
            totals[block, row, 0] += sums[number, row, 0]
            totals[block, row, 1] += sums[number, row, 1]


@kernel
def screen_segments(
    addresses: Integers, offsets: Integers, segments: Integers, first: int, last: int, worst: Integers
) -> None:
    """Find the largest bit pattern, without signs, of each segment of each update: `[s, n]`."""
    for number in range(first, last):
        block, start, stop = segments[number]
        for row in range(len(addresses)):
            place = addresses[row, block]
            worst[number, row] = largest(place + 4 * (start - offsets[block]), stop - start) if place != 0 else 0


@kernel
def scale_segments(
    addresses: Integers, offsets: Integers, segments: Integers, first: int, last: int, factors: Float64, out: int
) -> None:
    """Multiply each block of one update by its factor `[B]`, and round; unused blocks are zero.

    `out` may be the address of the update; segments that would not change are then not written.
    """
    scaled = np.empty(SEGMENT, np.float32)
    for number in range(first, last):
        block, start, stop = segments[number]
        count = stop - start
        if factors[block] == 1.0 and addresses[0, block] + 4 * (start - offsets[block]) == out + 4 * start:
            continue
        if addresses[0, block] == 0:
            for k in range(count):
                scaled[k] = 0.0
        else:
            values = carray(floats_at(addresses[0, block] + 4 * (start - offsets[block])), (count,))
            for k in range(count):
                scaled[k] = np.float32(factors[block] * values[k])
        store_result(scaled, count, 0, out + 4 * start, False)
