"""Kernels for means of updates and votes on signs, added to the model in the same pass."""

from __future__ import annotations

import numpy as np

from hpcps.numerics.blocks import SEGMENT, Float64
from hpcps.numerics.kernels.compiled import kernel
from hpcps.numerics.kernels.memory import NONE, floats, largest, magnitude, write
from hpcps.numerics.kernels.pointers import Table

MEAN_COLUMNS = 2048
"""Columns whose mean is computed at a time: longer reads of each row, and their sums are in the fastest cache."""
COLUMNS = 256
"""The same for votes and weighted sums, which keep more arrays."""

TOGETHER = 4
"""Rows that are added per pass over the sums."""


@kernel
def average_segments(table: Table, first: int, last: int, divisors: Float64, base: int, out: int) -> tuple[int, int]:
    """Compute the sum of the updates divided by the block's divisor, segment by segment.

    Args:
        table: see `PointerTable`.
        first: the number of the first segment.
        last: the number after that of the last segment.
        divisors: the divisor of each block: `[B]`.
        base: the address of the vector to which the mean is added, or 0.
        out: the address of the result.

    Returns:
        The largest bit patterns, without signs, of the means and of the result.
    """
    addresses, offsets, segments = table
    places = np.empty(len(addresses) + TOGETHER, np.int64)
    zeros = np.zeros(SEGMENT, np.float32)
    nothing, total = np.zeros(MEAN_COLUMNS, np.float64), np.empty(MEAN_COLUMNS, np.float64)
    mean = np.empty(MEAN_COLUMNS, np.float32)
    worst = result = NONE
    for number in range(first, last):
        block, start, stop = segments[number]
        present = 0
        for row in range(len(addresses)):
            if addresses[row, block] != 0:
                places[present] = addresses[row, block] + 4 * (start - offsets[block])
                present += 1
        places[present : present + TOGETHER] = zeros.ctypes.data  # adding +0 changes no sum
        divisor, final = divisors[block], max(present - 1, 0) // TOGETHER * TOGETHER
        before_last = total if final else nothing
        for begin in range(0, stop - start, MEAN_COLUMNS):
            count = min(MEAN_COLUMNS, stop - start - begin)
            for row in range(0, final, TOGETHER):
                a, b = floats(places[row] + 4 * begin, count), floats(places[row + 1] + 4 * begin, count)
                c, d = floats(places[row + 2] + 4 * begin, count), floats(places[row + 3] + 4 * begin, count)
                if row == 0:
                    total[:] = 0.0
                for k in range(count):
                    total[k] = total[k] + a[k] + b[k] + c[k] + d[k]
            # The final sums are divided at once, not stored.
            a, b = floats(places[final] + 4 * begin, count), floats(places[final + 1] + 4 * begin, count)
            c, d = floats(places[final + 2] + 4 * begin, count), floats(places[final + 3] + 4 * begin, count)
            if base == out:  # where these overlap, the loops below would not use vector instructions
                for k in range(count):
                    mean[k] = np.float32((before_last[k] + a[k] + b[k] + c[k] + d[k]) / divisor)
                worst = max(worst, largest(mean[:count]))
                result = max(result, write(mean[:count], start + begin, base, out))
                continue
            # One pass: with several, the memory waits for the arithmetic.
            target = floats(out + 4 * (start + begin), count)
            if base == 0:
                for k in range(count):
                    target[k] = np.float32((before_last[k] + a[k] + b[k] + c[k] + d[k]) / divisor)
                    worst = max(worst, magnitude(target[k]))
            else:
                before = floats(base + 4 * (start + begin), count)
                for k in range(count):
                    change = np.float32((before_last[k] + a[k] + b[k] + c[k] + d[k]) / divisor)
                    worst = max(worst, magnitude(change))
                    target[k] = before[k] + change
                    result = max(result, magnitude(target[k]))
    return worst, result


@kernel
def vote_segments(
    table: Table, first: int, last: int, step: float, threshold: float, base: int, out: int
) -> tuple[int, int]:
    """Compute a step by the signs of the updates, or if it is 0 their mean with a sign, segment by segment.

    Returns:
        The largest bit patterns, without signs: of a mean, or of NaN if a value is not finite; and of the result if
        there is a base.
    """
    addresses, offsets, segments = table
    places = np.empty(len(addresses) + TOGETHER, np.int64)
    zeros = np.zeros(SEGMENT, np.float32)
    total, signs = np.empty(COLUMNS, np.float64), np.empty(COLUMNS, np.int32)
    spoilt, found = np.empty(COLUMNS, np.float32), np.empty(COLUMNS, np.float32)
    worst = result = NONE
    zero = np.float32(0)
    for number in range(first, last):
        block, start, stop = segments[number]
        present = 0
        for row in range(len(addresses)):
            if addresses[row, block] != 0:
                places[present] = addresses[row, block] + 4 * (start - offsets[block])
                present += 1
        places[present : present + TOGETHER] = zeros.ctypes.data  # adding +0 changes no sum and no vote
        for begin in range(0, stop - start, COLUMNS):
            count = min(COLUMNS, stop - start - begin)
            total[:] = 0.0
            signs[:] = 0
            spoilt[:] = zero
            for row in range(0, present, TOGETHER):
                a, b = floats(places[row] + 4 * begin, count), floats(places[row + 1] + 4 * begin, count)
                c, d = floats(places[row + 2] + 4 * begin, count), floats(places[row + 3] + 4 * begin, count)
                for k in range(count):  # additions in this form become masked ones
                    votes = signs[k]
                    votes += np.int32(a[k] > zero)
                    votes -= np.int32(a[k] < zero)
                    votes += np.int32(b[k] > zero)
                    votes -= np.int32(b[k] < zero)
                    votes += np.int32(c[k] > zero)
                    votes -= np.int32(c[k] < zero)
                    votes += np.int32(d[k] > zero)
                    votes -= np.int32(d[k] < zero)
                    signs[k] = votes
                if step == 0.0:
                    for k in range(count):
                        total[k] = total[k] + a[k] + b[k] + c[k] + d[k]
                else:  # NaN if a value is not finite
                    for k in range(count):
                        spoilt[k] = spoilt[k] + a[k] * zero + b[k] * zero + c[k] * zero + d[k] * zero
            if step == 0.0:
                for k in range(count):
                    found[k] = np.float32(total[k] / len(addresses))
                worst = max(worst, largest(found[:count]))
                for k in range(count):
                    found[k] = found[k] if abs(signs[k]) >= threshold else -found[k]
            else:
                worst = max(worst, largest(spoilt[:count]))
                for k in range(count):
                    found[k] = np.float32((np.int32(signs[k] > 0) - np.int32(signs[k] < 0)) * step)
            result = max(result, write(found[:count], start + begin, base, out))
    return worst, result
