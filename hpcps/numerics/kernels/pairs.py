"""Kernels for the inner products of all pairs of updates, and for weighted sums of updates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hpcps.numerics.blocks import LANES, LARGEST, SEGMENT, STRETCH, Float64
from hpcps.numerics.kernels.compiled import kernel
from hpcps.numerics.kernels.means import COLUMNS, TOGETHER
from hpcps.numerics.kernels.memory import NONE, floats, write
from hpcps.numerics.kernels.pointers import FINITE, PointerTable, Table, result
from hpcps.numerics.kernels.registers import RECTANGLE, rectangle_of_products
from hpcps.numerics.layout import Vector
from hpcps.numerics.updates import Updates

TALL, WIDE = RECTANGLE
SMALL = 4096
"""Elements of a tile of all updates: 32 KiB in float64."""
NARROWEST = 64
"""The smallest number of columns of such a tile."""


@kernel
def multiply_pairs(table: Table, first: int, last: int, sums: Float64) -> None:
    """Compute the products of all pairs of updates, stretch by stretch.

    Args:
        table: see `PointerTable`; its segments are stretches.
        first: the number of the first stretch.
        last: the number after that of the last stretch.
        sums: output, zero before: `[s, m, m]`, m a multiple of 4 and at least n. Elements below the diagonal are
            undefined.
    """
    addresses, offsets, stretches = table
    m = sums.shape[1]
    # The rows of a tile fit the smallest cache, unless there are very many.
    width = max(NARROWEST, SMALL // m // LANES * LANES)
    values, lanes = np.zeros((m, width)), np.zeros((m, m, LANES))
    rows, to = values.ctypes.data, lanes.ctypes.data
    pitch, stride = 8 * width, 8 * LANES * m
    for number in range(first, last):
        block, start, stop = stretches[number]
        for segment in range(start, stop, SEGMENT):
            lanes[:] = 0.0
            for begin in range(segment, min(segment + SEGMENT, stop), width):
                count = min(width, segment + SEGMENT - begin, stop - begin)
                whole = (count + LANES - 1) // LANES * LANES
                for row in range(len(addresses)):
                    values[row, count:whole] = 0.0
                    if addresses[row, block] == 0:
                        values[row, :count] = 0.0
                        continue
                    source = floats(addresses[row, block] + 4 * (begin - offsets[block]), count)
                    for k in range(count):
                        values[row, k] = source[k]
                for row in range(0, m, TALL):
                    for column in range(row // WIDE * WIDE, m, WIDE):
                        at = to + stride * row + 8 * LANES * column
                        rectangle_of_products(rows + pitch * row, rows + pitch * column, pitch, whole, at, stride)
            for row in range(m):
                for column in range(row, m):
                    fold(lanes[row, column])
                    sums[number, row, column] += lanes[row, column, 0]


@kernel
def fold(lanes: Float64) -> None:
    """Add up the lanes of a segment into the first one, as `hpcps.numerics.blocks.segment_sums` does."""
    half = LANES // 2
    while half:
        for lane in range(half):
            lanes[lane] += lanes[lane + half]
        half //= 2


@kernel
def weigh_segments(table: Table, first: int, last: int, weights: Float64, base: int, out: int) -> Any:
    """Compute the sum of the updates times their weights `[n, B]`, segment by segment; see `average_segments`.

    Returns:
        The largest bit pattern, without signs, of the result if there is a base, else 0.
    """
    addresses, offsets, segments = table
    places, shares = np.empty(len(addresses) + TOGETHER, np.int64), np.zeros(len(addresses) + TOGETHER)
    zeros = np.zeros(SEGMENT, np.float32)
    total, rounded = np.empty(COLUMNS, np.float64), np.empty(COLUMNS, np.float32)
    result = NONE
    for number in range(first, last):
        block, start, stop = segments[number]
        present = 0
        for row in range(len(addresses)):
            if addresses[row, block] != 0 and weights[row, block] != 0.0:
                places[present] = addresses[row, block] + 4 * (start - offsets[block])
                shares[present] = weights[row, block]
                present += 1
        places[present : present + TOGETHER] = zeros.ctypes.data  # adding +0 changes no sum
        for begin in range(0, stop - start, COLUMNS):
            count = min(COLUMNS, stop - start - begin)
            total[:] = 0.0
            for row in range(0, present, TOGETHER):
                a, b = floats(places[row] + 4 * begin, count), floats(places[row + 1] + 4 * begin, count)
                c, d = floats(places[row + 2] + 4 * begin, count), floats(places[row + 3] + 4 * begin, count)
                v, w, x, y = shares[row], shares[row + 1], shares[row + 2], shares[row + 3]
                for k in range(count):
                    total[k] = total[k] + v * a[k] + w * b[k] + x * c[k] + y * d[k]
            for k in range(count):
                rounded[k] = np.float32(min(max(total[k], -LARGEST), LARGEST))
            result = max(result, write(rounded[:count], start + begin, base, out))
    return result


def gram(updates: Updates) -> Float64:
    n, blocks = len(updates), len(updates.layout.blocks)
    stretches = replace(PointerTable.of(updates), segments=updates.layout.segments(STRETCH))
    m = -(-n // WIDE) * WIDE
    sums = np.zeros((len(stretches.segments), m, m))
    stretches.run(multiply_pairs, updates.to.threads, sums)
    totals = np.zeros((blocks, n, n))
    for block, products in zip(stretches.segments[:, 0], sums[:, :n, :n], strict=True):
        totals[block] += products
    return np.triu(totals) + np.triu(totals, 1).transpose(0, 2, 1)


def weighted_sum(updates: Updates, weights: Float64) -> tuple[Vector, bool]:
    out, to = result(updates)
    weights = np.ascontiguousarray(weights, np.float64)
    results = PointerTable.of(updates).run(weigh_segments, updates.to.threads, weights, *to)
    return out, all(result <= FINITE for result in results)
