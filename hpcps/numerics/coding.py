"""Loops of compressors in which each step depends on the one before; `kernels.coding` has them compiled.

They are definitions for both Python and numba, so that both give the same bits: integers are of numpy's fixed sizes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics.layout import Vector


def select_largest(values: Vector, indices: NDArray[np.uint32], kept: Vector) -> None:
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


def draw_indices(state: NDArray[np.uint64], n: int, indices: NDArray[np.uint32]) -> None:
    """Draw indices below n with replacement, each the remainder of a number of the generator xorshift128+.

    Args:
        state: the two words of the generator, which are changed.
        n: the number of values.
        indices: gets the indices `[k]`.
    """
    a, b, size = state[0], state[1], np.uint64(n)
    for i in range(len(indices)):
        t = a
        a = b
        t ^= t << np.uint64(23)
        t ^= t >> np.uint64(17)
        t ^= a ^ (a >> np.uint64(26))
        b = t
        indices[i] = (t + a) % size
    state[0], state[1] = a, b
