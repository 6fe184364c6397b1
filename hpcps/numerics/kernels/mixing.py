"""The kernel that computes several weighted sums of the same updates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpcps.numerics.blocks import SEGMENT, Float64
from hpcps.numerics.kernels.compiled import kernel
from hpcps.numerics.kernels.means import COLUMNS, TOGETHER
from hpcps.numerics.kernels.memory import floats
from hpcps.numerics.kernels.places import Integers, Places, Table
from hpcps.numerics.layout import Vector
from hpcps.numerics.mixture import LARGEST
from hpcps.numerics.updates import Updates


@kernel
def mix_segments(
    table: Table, first: int, last: int, entries: Integers, shares: Float64, counts: Integers, target: Integers
) -> None:
    """Compute weighted sums of the updates, segment by segment.

    Args:
        table: see `Places`; segments may begin anywhere in their block.
        first: the number of the first segment.
        last: the number after that of the last segment.
        entries: the updates that have a weight in each row, then n: `[B or 1, m, n + TOGETHER]`.
        shares: their weights, then 0: `[B or 1, m, n + TOGETHER]`.
        counts: how many they are: `[B or 1, m]`.
        target: the first coordinate, the address of the first row, and the bytes from one row to the next.
    """
    addresses, offsets, segments = table
    n = len(addresses)
    places = np.empty(n + 1, np.int64)
    zeros, total = np.zeros(SEGMENT, np.float32), np.empty(COLUMNS, np.float64)
    origin, out, stride = target[0], target[1], target[2]
    for number in range(first, last):
        block, start, stop = segments[number]
        which = block if len(counts) > 1 else 0
        places[:] = zeros.ctypes.data
        for row in range(n):
            if addresses[row, block] != 0:
                places[row] = addresses[row, block] + 4 * (start - offsets[block])
        for begin in range(0, stop - start, COLUMNS):
            count = min(COLUMNS, stop - start - begin)
            for row in range(counts.shape[1]):
                total[:] = 0.0
                used, share = entries[which, row], shares[which, row]
                for k in range(0, counts[which, row], TOGETHER):
                    a = floats(places[used[k]] + 4 * begin, count)
                    b = floats(places[used[k + 1]] + 4 * begin, count)
                    c = floats(places[used[k + 2]] + 4 * begin, count)
                    d = floats(places[used[k + 3]] + 4 * begin, count)
                    v, w, x, y = share[k], share[k + 1], share[k + 2], share[k + 3]
                    for column in range(count):
                        total[column] = total[column] + v * a[column] + w * b[column] + x * c[column] + y * d[column]
                result = floats(out + stride * row + 4 * (start + begin - origin), count)
                for column in range(count):
                    result[column] = np.float32(min(max(total[column], -LARGEST), LARGEST))


def mix(updates: Updates, weights: Float64, columns: slice, out: Vector, threads: int) -> None:
    """Compute a range of coordinates of weighted sums of updates; see `hpcps.numerics.mixture.Mixture`.

    Args:
        updates: the n updates.
        weights: the weight of each update in each row: `[B or 1, m, n]`.
        columns: the range.
        out: output, `[m, t]`; the elements of a row are contiguous.
        threads: the maximum number of threads.
    """
    n = len(updates)
    counts = (weights != 0).sum(axis=2).astype(np.int64)
    order = np.argsort(weights == 0, axis=2, kind="stable")
    entries = np.full((*weights.shape[:2], n + TOGETHER), n, np.int64)
    shares = np.zeros(entries.shape)
    used = np.arange(n) < counts[:, :, None]
    entries[:, :, :n][used] = order[used]
    shares[:, :, :n][used] = np.take_along_axis(weights, order, axis=2)[used]
    segments = updates.layout.segments(SEGMENT)
    first = np.searchsorted(segments[:, 2], columns.start, side="right")
    last = np.searchsorted(segments[:, 1], columns.stop, side="left")
    part = segments[first:last].copy()
    np.clip(part[:, 1:], columns.start, columns.stop, out=part[:, 1:])
    target = np.array([columns.start, out.__array_interface__["data"][0], out.strides[0]], np.int64)
    replace(Places.of(updates), segments=part).run(mix_segments, threads, entries, shares, counts, target)
