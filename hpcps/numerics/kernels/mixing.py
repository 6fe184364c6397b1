"""The kernel that computes several weighted sums of the same updates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hpcps.numerics.blocks import LARGEST, SEGMENT, Float64
from hpcps.numerics.kernels.compiled import kernel
from hpcps.numerics.kernels.memory import floats
from hpcps.numerics.kernels.pointers import Integers, PointerTable, Table
from hpcps.numerics.kernels.registers import MIXED, TOGETHER, mix_in_registers
from hpcps.numerics.layout import Vector
from hpcps.numerics.updates import Updates

SMALL = 4096
"""Elements of a tile of all updates: 32 KiB in float64."""


@kernel
def scale_rows(table: Table, first: int, last: int, rows: Integers, factors: Float64, target: Integers) -> None:
    """Compute rows that are one update times a factor each, segment by segment, to the same bits as `mix_segments`.

    Args:
        table: see `mix_segments`.
        first: see `mix_segments`.
        last: see `mix_segments`.
        rows: the update of each row: `[B or 1, m]`.
        factors: its factor: `[B or 1, m]`.
        target: see `mix_segments`.
    """
    addresses, offsets, segments = table
    origin, out, step = target[0], target[1], target[2]
    for number in range(first, last):
        block, start, stop = segments[number]
        which = block if len(rows) > 1 else 0
        for one in range(rows.shape[1]):
            result = floats(out + step * one + 4 * (start - origin), stop - start)
            place, factor = addresses[rows[which, one], block], factors[which, one]
            if place == 0:
                result[:] = 0.0
                continue
            source = floats(place + 4 * (start - offsets[block]), stop - start)
            for k in range(stop - start):
                result[k] = np.float32(min(max(0.0 + factor * source[k], -LARGEST), LARGEST))  # -0 becomes +0


@kernel
def mix_segments(table: Table, first: int, last: int, weights: Float64, m: int, target: Integers) -> None:
    """Compute weighted sums of the updates, segment by segment.

    Args:
        table: see `PointerTable`; segments may begin anywhere in their block.
        first: the number of the first segment.
        last: the number after that of the last segment.
        weights: the weight of each update in each row: `[B or 1, M, n]`, M a multiple of `TOGETHER`.
        m: the number of rows; at most M.
        target: the first coordinate, the address of the first row, and the bytes from one row to the next.
    """
    addresses, offsets, segments = table
    n = len(addresses)
    width = max(2 * MIXED, SMALL // n // MIXED * MIXED)
    values, total = np.zeros((n, width)), np.empty((TOGETHER, width))
    pitch, stride = 8 * width, 8 * n
    origin, out, step = target[0], target[1], target[2]
    for number in range(first, last):
        block, start, stop = segments[number]
        which = block if len(weights) > 1 else 0
        for begin in range(start, stop, width):
            count = min(width, stop - begin)
            for row in range(n):
                if addresses[row, block] == 0:
                    values[row, :count] = 0.0
                    continue
                source = floats(addresses[row, block] + 4 * (begin - offsets[block]), count)
                for k in range(count):
                    values[row, k] = source[k]
            whole = (count + MIXED - 1) // MIXED * MIXED  # what stands behind the count is computed and not used
            for row in range(0, m, TOGETHER):
                mix_in_registers(
                    values.ctypes.data, pitch, whole, n, weights[which, row:].ctypes.data, stride, total.ctypes.data
                )
                for one in range(row, min(row + TOGETHER, m)):
                    result, sums = floats(out + step * one + 4 * (begin - origin), count), total[one - row]
                    for k in range(count):
                        result[k] = np.float32(min(max(sums[k], -LARGEST), LARGEST))


def mix(updates: Updates, weights: Float64, columns: slice, out: Vector) -> None:
    """Compute a range of coordinates of weighted sums of updates; see `hpcps.numerics.mixture.Mixture`.

    Args:
        updates: the n updates.
        weights: the weight of each update in each row: `[B or 1, m, n]`.
        columns: the range.
        out: output, `[m, t]`; the elements of a row are contiguous.
    """
    m, n, threads = *weights.shape[1:], updates.to.threads
    target = np.array([columns.start, out.__array_interface__["data"][0], out.strides[0]], np.int64)
    places = replace(PointerTable.of(updates), segments=_within(updates.layout.segments(SEGMENT), columns))
    if (np.count_nonzero(weights, axis=2) <= 1).all():
        rows = np.abs(weights).argmax(axis=2)
        places.run(scale_rows, threads, rows, np.take_along_axis(weights, rows[:, :, None], axis=2)[:, :, 0], target)
        return
    padded = np.zeros((len(weights), -(-m // TOGETHER) * TOGETHER, n))
    padded[:, :m] = weights
    places.run(mix_segments, threads, padded, m, target)


def _within(segments: Integers, columns: slice) -> Integers:
    """Return the parts of segments that are in a range of coordinates."""
    first = np.searchsorted(segments[:, 2], columns.start, side="right")
    last = np.searchsorted(segments[:, 1], columns.stop, side="left")
    part = segments[first:last].copy()
    np.clip(part[:, 1:], columns.start, columns.stop, out=part[:, 1:])
    return part
