"""Rules that look at the order of the values of each coordinate."""

from __future__ import annotations

import numpy as np
from numba import carray
from numpy.typing import NDArray

from hpcps.blocks import LANES, SEGMENT
from hpcps.kernels.compiled import kernel
from hpcps.kernels.means import FINITE, NONE, deposit
from hpcps.kernels.networks import ABREAST, LAST, mean_of_rows, merge_rows, sort_pairs, take_and_sort
from hpcps.kernels.places import Integers
from hpcps.kernels.vectors import WIDTH, fence, floats_at

Network = tuple[int, int, Integers, Integers]
"""How rows are sorted: how many are kept, in how many classes they are taken, what is merged and then compared."""
Flags = NDArray[np.int32]
Work = tuple[NDArray[np.int32], Integers, Flags]
"""What is worked with: room for tiles of 16 sorted columns, the addresses of the rows, and 16 flags."""

TILE = 1 << 12
"""Bytes that are sorted at a time, if that makes many columns: a part of the first-level cache."""


@kernel
def take_columns(
    rows: int, sources: int, offset: int, count: int, place: int, stride: int, span: int, worst: int
) -> None:
    """Sort columns of up to 16 rows on their way into a tile; see `take_and_sort`."""
    # Each is a network of its own, unrolled in registers.
    if rows == 1:
        take_and_sort(sources, offset, count, place, stride, span, worst, 1)
    elif rows == 2:
        take_and_sort(sources, offset, count, place, stride, span, worst, 2)
    elif rows == 3:
        take_and_sort(sources, offset, count, place, stride, span, worst, 3)
    elif rows == 4:
        take_and_sort(sources, offset, count, place, stride, span, worst, 4)
    elif rows == 5:
        take_and_sort(sources, offset, count, place, stride, span, worst, 5)
    elif rows == 6:
        take_and_sort(sources, offset, count, place, stride, span, worst, 6)
    elif rows == 7:
        take_and_sort(sources, offset, count, place, stride, span, worst, 7)
    elif rows == 8:
        take_and_sort(sources, offset, count, place, stride, span, worst, 8)
    elif rows == 9:
        take_and_sort(sources, offset, count, place, stride, span, worst, 9)
    elif rows == 10:
        take_and_sort(sources, offset, count, place, stride, span, worst, 10)
    elif rows == 11:
        take_and_sort(sources, offset, count, place, stride, span, worst, 11)
    elif rows == 12:
        take_and_sort(sources, offset, count, place, stride, span, worst, 12)
    elif rows == 13:
        take_and_sort(sources, offset, count, place, stride, span, worst, 13)
    elif rows == 14:
        take_and_sort(sources, offset, count, place, stride, span, worst, 14)
    elif rows == 15:
        take_and_sort(sources, offset, count, place, stride, span, worst, 15)
    elif rows == 16:
        take_and_sort(sources, offset, count, place, stride, span, worst, 16)


@kernel
def tiles_of(height: int) -> int:
    """Return how many tiles of 16 columns of so many rows are sorted at a time."""
    return max(1, TILE // (WIDTH * height * ABREAST)) * ABREAST


@kernel
def mean_of_ranks(count: int, network: Network, ranks: tuple[int, int, bool], work: Work, out: int) -> None:
    """Take the mean of the ranks of `count` times 16 columns, to an address.

    Rows some classes apart are sorted as they are taken, then merged, and what is left is compared pair by pair.
    """
    height, classes, merges, pairs = network
    low, high, nearest = ranks
    tile, sources, flags = work
    # Cache lines of its own: a row of 16 columns is as long as one, and half of two costs as much as both.
    place = (tile.ctypes.data + WIDTH - 1) // WIDTH * WIDTH
    span = WIDTH * height
    step = tiles_of(height)
    for start in range(0, count, step):
        taken = min(step, count - start)
        table = sources.ctypes.data
        for first in range(classes):
            rows = (len(sources) - first + classes - 1) // classes
            begin = place + WIDTH * first
            take_columns(rows, table, WIDTH * start, taken, begin, WIDTH * classes, span, flags.ctypes.data)
            table += 8 * rows
        for k in range(taken):
            for merge in range(len(merges)):
                merge_rows(place + span * k + merges[merge, 0], merges[merge, 1], merges[merge, 2])
        # Of the last tiles, what was in them before is made use of, too: that harms nobody, and its mean is not wanted.
        for k in range(0, taken, ABREAST):
            sort_pairs(pairs.ctypes.data, len(pairs), place + span * k, span)
            mean_of_rows(place + span * k, span, low, high, nearest, out + WIDTH * (start + k))


@kernel
def find_rows(addresses: Integers, block: int, offset: int, classes: int, zeros: int, sources: Integers) -> None:
    """Tell where a segment of each row lies, class by class; that of an absent one is zeros."""
    position = 0
    for first in range(classes):
        for row in range(first, len(addresses), classes):
            place = addresses[row, block]
            sources[position] = zeros if place == 0 else place + 4 * offset
            position += 1


@kernel
def pad_rows(sources: Integers, offset: int, count: int, spare: int) -> None:
    """Copy the last `count` columns of the rows, fewer than 16, to where zeros can follow them, and point there."""
    for row in range(len(sources)):
        place = spare + WIDTH * row
        source, target = carray(floats_at(sources[row] + offset), (count,)), carray(floats_at(place), (LANES,))
        for k in range(LANES):
            target[k] = source[k] if k < count else np.float32(0.0)
        sources[row] = place


@kernel
def ordered_segments(
    addresses: Integers,
    offsets: Integers,
    segments: Integers,
    first: int,
    last: int,
    network: Network,
    low: int,
    high: int,
    nearest: bool,
    base: int,
    out: int,
    past: bool,
) -> tuple[int, int]:
    """Take the mean of the sorted values from one rank to another, or of those nearest to it, segment by segment.

    Args:
        addresses: see `average_segments`, as for the next four.
        offsets: where each block begins.
        segments: see `Places`.
        first: the number of the first segment.
        last: the number of the one after the last.
        network: how many rows are kept, those beyond the updates' greater than all; how many classes of them are
            sorted as they are taken; and in bytes within a tile what is merged, begin, step and odd ones `[m, 3]`, and
            the pairs that are compared then `[p, 2]`.
        low: the first rank of the mean.
        high: the one after the last.
        nearest: whether not this mean is wanted but that of the `high` values nearest to it (`low` are left out).
        base: the address of what the result is added to, or 0.
        out: the address of where the result goes.
        past: whether it goes there past all caches.

    Returns:
        The largest bit patterns, without signs, of the updates and of the result. The first may be less than that if
        it is not finite: what is not cannot be sorted, and nothing more is made of it.
    """
    rows = len(addresses)
    tile = np.full((tiles_of(network[0]) * network[0] + 1) * LANES, LAST, np.int32)
    spare = np.empty(rows * LANES, np.float32)
    zeros, mean = np.zeros(SEGMENT, np.float32), np.empty(SEGMENT + ABREAST * LANES, np.float32)
    sources, flags = np.empty(rows, np.int64), np.empty(LANES, np.int32)
    work, ranks = (tile, sources, flags), (low, high, nearest)
    result = NONE
    for number in range(first, last):
        block, start, stop = segments[number]
        count = stop - start
        whole = count // LANES * LANES
        flags[:] = 0
        find_rows(addresses, block, start - offsets[block], network[1], zeros.ctypes.data, sources)
        mean_of_ranks(whole // LANES, network, ranks, work, mean.ctypes.data)
        if whole < count:
            pad_rows(sources, 4 * whole, count - whole, spare.ctypes.data)
            mean_of_ranks(1, network, ranks, work, mean.ctypes.data + 4 * whole)
        for k in range(LANES):
            if flags[k] > FINITE:
                return flags[k], result
        result = max(result, deposit(mean, count, base + 4 * start if base != 0 else 0, out + 4 * start, past))
    if past:
        fence()
    return NONE, result
