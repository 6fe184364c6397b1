"""The kernel of rules that count the signs of the updates."""

from __future__ import annotations

import numpy as np

from hpcps.numerics.blocks import SEGMENT
from hpcps.numerics.kernels.compiled import kernel
from hpcps.numerics.kernels.means import COLUMNS, TOGETHER
from hpcps.numerics.kernels.memory import NONE, floats, largest, write
from hpcps.numerics.kernels.places import Table


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
