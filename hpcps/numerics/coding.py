"""Selections and loops of compressors; `kernels.coding` has them compiled.

The loops, in which each step depends on the one before, are definitions for both Python and numba, so that both give
the same bits: integers are of numpy's fixed sizes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics.layout import Vector

TILE = 1 << 14
"""Elements that are encoded at a time: temporary arrays of a tile stay in the cache."""

_MAGNITUDE = np.uint32(0x7FFFFFFF)
"""All bits of a float32 but its sign: as integers, they are in the order of the magnitudes, and NaN is the largest."""


def tiles(size: int) -> Iterator[slice]:
    """Yield the tiles of a vector of `size` elements; all but the last have a whole number of bytes of bits."""
    for start in range(0, size, TILE):
        yield slice(start, min(start + TILE, size))


def narrow(values: Vector, halves: NDArray[np.float16]) -> bool:
    """Write float32 values as float16, rounded to nearest, ties to even; infinity for NaN and beyond the range.

    In whole vectors: numpy's conversion, value by value, reads as much (1.5 GB/s) of values that are normal as float16,
    and 0.06 GB/s of values below 6e-5, which updates have, where this reads 1.4 GB/s.

    Returns:
        Whether one is infinite.
    """
    largest = 0
    for tile in tiles(len(values)):
        bits = values[tile].view(np.uint32)
        absolute = bits & _MAGNITUDE
        # Half of the last place, less one for even values, carries into it as rounding does; 112 is the difference of
        # the biases.
        normal = absolute >> 13
        normal &= 1
        normal += absolute
        normal -= np.uint32((112 << 23) - 0xFFF)
        normal >>= 13
        # Beside 0.5 the last place of a float32 is that of the subnormal halves, those below 2**-14.
        subnormal = (absolute.view(np.float32) + np.float32(0.5)).view(np.uint32)
        subnormal -= np.uint32(0x3F000000)
        np.copyto(normal, subnormal, where=absolute < np.uint32(113 << 23))
        np.minimum(normal, np.uint32(0x7C00), out=normal)
        largest = max(largest, int(normal.max()))
        sign = bits >> 16
        sign &= 0x8000
        sign |= normal
        halves[tile].view(np.uint16)[:] = sign
    return largest >= 0x7C00


def widen(halves: NDArray[np.float16], values: Vector) -> None:
    """Write float16 values as float32."""
    values[:] = halves


def round_to_upper(bits: NDArray[np.uint32], upper: NDArray[np.uint16]) -> bool:
    """Round the bits of float32 values to their upper halves, ties to even.

    Returns:
        Whether a value is not finite, or beyond the range of finite upper halves; then those of NaN may be any.
    """
    largest = 0
    for tile in tiles(len(bits)):
        largest = max(largest, int((bits[tile] & _MAGNITUDE).max()))
        # Adding half of the last place, less one for even values, carries into it as rounding does.
        rounded = bits[tile] >> 16
        rounded &= 1
        rounded += 0x7FFF
        rounded += bits[tile]
        rounded >>= 16
        upper[tile] = rounded
    return largest >= 0x7F7F8000


def pack_codes(codes: NDArray[np.uint8], width: int, packed: NDArray[np.uint8]) -> None:
    """Write codes of 2, 4 or 8 bits into bytes, the first in the lowest bits; zeros fill the last byte."""
    number = 8 // width
    rows = np.pad(codes, (0, -len(codes) % number)).reshape(-1, number) if len(codes) % number else codes
    rows = rows.reshape(-1, number)
    packed[:] = rows[:, 0]
    for place in range(1, number):
        packed |= rows[:, place] << np.uint8(width * place)


def unpack_codes(packed: NDArray[np.uint8], width: int, n: int) -> NDArray[np.uint8]:
    """Return the n codes that `pack_codes` has written.

    Raises:
        ValueError: the last byte is not filled with zeros.
    """
    number, mask = 8 // width, np.uint8((1 << width) - 1)
    codes = np.empty((len(packed), number), np.uint8)
    for place in range(number):
        codes[:, place] = packed >> np.uint8(width * place) & mask
    if codes.reshape(-1)[n:].any():
        raise ValueError("bits after the last code")
    return codes.reshape(-1)[:n]


def select_largest(bits: NDArray[np.uint32], pairs: NDArray[np.uint32]) -> None:
    """Select the k values of largest magnitude, in the order of their indices; the first ones of equal magnitudes.

    Args:
        bits: the bits of the values, float32: `[n]`.
        pairs: gets the index and the bits of each: `[k, 2]`, 1 <= k <= n.
    """
    smallest, ties = _smallest_of_largest(bits, len(pairs))
    filled = 0
    for tile in tiles(len(bits)):
        magnitudes = bits[tile] & _MAGNITUDE
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
            magnitudes = bits[tile] & _MAGNITUDE
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


def xorshift(a: np.uint64, b: np.uint64) -> tuple[np.uint64, np.uint64, np.uint64]:
    """Return the next number of the generator xorshift128+ with the words a and b, and its words after that."""
    t = a ^ (a << np.uint64(23))
    t ^= t >> np.uint64(17)
    t ^= b ^ (b >> np.uint64(26))
    return t + b, b, t


def draw_indices(state: NDArray[np.uint64], n: int, indices: NDArray[np.uint32]) -> None:
    """Draw indices below n with replacement, each the remainder of a number of the generator xorshift128+.

    Args:
        state: the two words of the generator, which are changed.
        n: the number of values.
        indices: gets the indices `[k]`.
    """
    a, b, size = state[0], state[1], np.uint64(n)
    for i in range(len(indices)):
        drawn, a, b = xorshift(a, b)
        indices[i] = drawn % size
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
        number, a, b = xorshift(a, b)
        drawn = np.float64(number)
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
            coded = i - last if part == 0 else whole
            if part == 1:  # the sign
                if np.signbit(values[i]):
                    words[bits // 32] |= np.uint32(1 << (31 - bits % 32))
                bits += 1
                continue
            # Elias delta: zeros, the number of binary digits, and the digits after the first.
            digits = 1
            while coded >> digits:
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
                if (coded >> k) & 1:
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
