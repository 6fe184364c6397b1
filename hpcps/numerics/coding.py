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


def dither(
    values: Vector, state: NDArray[np.uint64], levels: int, scale: float, words: NDArray[np.uint32], natural: bool
) -> int:
    """Quantize values at random to levels, and write the levels that are not zero as bits; see `Dithering`.

    Args:
        values: the values `[n]`.
        state: the two words of the generator xorshift128+, which are changed: each value takes one number.
        levels: the largest level.
        scale: the magnitude of the largest level; above 0.
        words: gets the bits, the first in the highest bit of the first word; they must be zero.
        natural: whether levels are powers of two.

    Returns:
        The number of bits.
    """
    a, b, bits, last = state[0], state[1], 0, -1
    for i in range(len(values)):
        t = a
        a = b
        t ^= t << np.uint64(23)
        t ^= t >> np.uint64(17)
        t ^= a ^ (a >> np.uint64(26))
        b = t
        drawn = np.float64(t + a)
        share = np.float64(abs(values[i])) / scale * levels
        length = 1
        if natural:
            whole = 0
            if share > 1.0:
                whole = 1
                while 2 * whole < np.ceil(share):
                    whole *= 2
                length = whole
            rest = (share - whole) / length
        else:
            single = np.float32(share)
            whole = int(single)
            rest = np.float64(single - np.float32(whole))
        if drawn < rest * 18446744073709551615.0:
            whole += length
        if whole == 0:
            continue
        for part in range(3):
            number = i - last if part == 0 else whole
            if part == 1:  # the sign
                if np.signbit(values[i]):
                    words[bits // 32] |= np.uint32(1 << (31 - bits % 32))
                bits += 1
                continue
            # Elias delta: zeros, the number of binary digits, and the digits after the first.
            digits = 1
            while number >> digits:
                digits += 1
            more = 0
            while digits >> (more + 1):
                more += 1
            bits += more
            for k in range(more, -1, -1):
                if (digits >> k) & 1:
                    words[bits // 32] |= np.uint32(1 << (31 - bits % 32))
                bits += 1
            for k in range(digits - 2, -1, -1):
                if (number >> k) & 1:
                    words[bits // 32] |= np.uint32(1 << (31 - bits % 32))
                bits += 1
        last = i
    state[0], state[1] = a, b
    return bits


def undither(words: NDArray[np.uint32], bits: int, levels: int, scale: np.float32, values: Vector) -> bool:
    """Decode what `dither` has written; return whether it is valid.

    Args:
        words: the bits; they may come from an attacker.
        bits: their number, at most 32 for each word.
        levels: the largest level.
        scale: its magnitude.
        values: gets the values `[n]`.
    """
    for i in range(len(values)):
        values[i] = 0
    place, last, negative = 0, -1, False
    while place < bits:
        for part in range(3):
            if part == 1:
                if place >= bits:
                    return False
                negative = bool((words[place // 32] >> np.uint32(31 - place % 32)) & np.uint32(1))
                place += 1
                continue
            more = 0
            while place < bits and not (words[place // 32] >> np.uint32(31 - place % 32)) & np.uint32(1):
                more += 1
                place += 1
            if more > 5 or place + more + 1 > bits:
                return False
            digits = 0
            for _ in range(more + 1):
                digits = 2 * digits + int((words[place // 32] >> np.uint32(31 - place % 32)) & np.uint32(1))
                place += 1
            if digits > 32 or place + digits - 1 > bits:
                return False
            number = 1
            for _ in range(digits - 1):
                number = 2 * number + int((words[place // 32] >> np.uint32(31 - place % 32)) & np.uint32(1))
                place += 1
            if part == 0:
                last += number
                if last >= len(values):
                    return False
            else:
                if number > levels:
                    return False
                magnitude = np.float32(np.float32(number) * scale) / np.float32(levels)
                values[last] = -magnitude if negative else magnitude
    return True
