"""Selections of the values of largest magnitude."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics.coding.rounding import MAGNITUDE, tiles
from hpcps.numerics.layout import Vector


def select_largest(bits: NDArray[np.uint32], pairs: NDArray[np.uint32]) -> None:
    """Select the k values of largest magnitude, in the order of their indices; the first ones of equal magnitudes.

    Args:
        bits: the bits of the values, float32: `[n]`.
        pairs: gets the index and the bits of each: `[k, 2]`, 1 <= k <= n.
    """
    smallest, ties = _smallest_of_largest(bits, len(pairs))
    filled = 0
    for tile in tiles(len(bits)):
        magnitudes = bits[tile] & MAGNITUDE
        chosen = np.flatnonzero(magnitudes >= smallest)
        tied = np.flatnonzero(magnitudes[chosen] == smallest)
        chosen = np.delete(chosen, tied[ties:])
        ties -= len(tied[:ties])
        pairs[filled : filled + len(chosen), 0] = chosen + tile.start
        pairs[filled : filled + len(chosen), 1] = bits[tile][chosen]
        filled += len(chosen)


def _smallest_of_largest(bits: NDArray[np.uint32], k: int) -> tuple[np.uint32, int]:
    """Return the k-th largest magnitude, as bits, and how many of the k largest are equal to it.

    Three histograms find its 31 bits, the upper ones first.
    """
    found, known, left = 0, 31, k
    for width in (11, 10, 10):
        shift, counts = known - width, np.zeros(1 << width, np.int64)
        for tile in tiles(len(bits)):
            magnitudes = bits[tile] & MAGNITUDE
            if known < 31:
                magnitudes = magnitudes[magnitudes >> np.uint32(known) == found]
            counts += np.bincount(magnitudes >> np.uint32(shift) & np.uint32((1 << width) - 1), minlength=1 << width)
        at_least = np.cumsum(counts[::-1])
        place = int(np.searchsorted(at_least, left))
        left -= int(at_least[place - 1]) if place else 0
        found, known = found << width | (1 << width) - 1 - place, shift
    return np.uint32(found), left


def select_by_heap(values: Vector, indices: NDArray[np.uint32], kept: Vector) -> None:
    """Select the k values of largest magnitude, in the order of the heap of BytePS.

    It is a heap of C++'s standard library, as GNU's has it, with the smallest magnitude at its top: the first k values
    are pushed, and each later one that exceeds the top replaces it.

    Args:
        values: the values `[n]`.
        indices: gets their indices: `[k]`, 1 <= k <= n.
        kept: gets the values: `[k]`.
    """
    k = len(kept)
    for i in range(len(values)):
        value = values[i]
        if i < k:
            hole = i
        else:
            if not abs(value) > abs(kept[0]):
                continue
            # The last element leaves its place: it sinks from the top to a leaf, and rises from there.
            last, last_index = kept[k - 1], indices[k - 1]
            length, hole = k - 1, 0
            child = 0
            while child < (length - 1) // 2:
                child = 2 * (child + 1)
                if abs(kept[child]) > abs(kept[child - 1]):
                    child -= 1
                kept[hole], indices[hole] = kept[child], indices[child]
                hole = child
            if length % 2 == 0 and length > 0 and child == (length - 2) // 2:
                child = 2 * (child + 1)
                kept[hole], indices[hole] = kept[child - 1], indices[child - 1]
                hole = child - 1
            while hole > 0 and abs(kept[(hole - 1) // 2]) > abs(last):
                kept[hole], indices[hole] = kept[(hole - 1) // 2], indices[(hole - 1) // 2]
                hole = (hole - 1) // 2
            if length > 0:
                kept[hole], indices[hole] = last, last_index
            hole = k - 1
        while hole > 0 and abs(kept[(hole - 1) // 2]) > abs(value):
            kept[hole], indices[hole] = kept[(hole - 1) // 2], indices[(hole - 1) // 2]
            hole = (hole - 1) // 2
        kept[hole], indices[hole] = value, i
