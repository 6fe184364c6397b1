"""Random indices and levels, and their codes of variable length."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics.blocks import segment_sums
from hpcps.numerics.coding.rounding import pack_codes, tiles
from hpcps.numerics.layout import Vector

BUCKET = 128
"""Values that have one norm in `quantize`."""


def buckets_of(values: Vector) -> Vector:
    """Return values in rows of `BUCKET`, the last one filled with zeros: `[b, 128]`."""
    rest = -len(values) % BUCKET
    return (np.pad(values, (0, rest)) if rest else values).reshape(-1, BUCKET)


def sum_squares(values: Vector, sums: NDArray[np.float64]) -> None:
    """Write the sum of squares of each bucket; as all sums, in the order of `numerics/blocks.py`."""
    for tile in tiles(len(values)):
        squares = np.square(buckets_of(values[tile]), dtype=np.float64)
        sums[tile.start // BUCKET : -(-tile.stop // BUCKET)] = segment_sums(squares)[:, 0]


def quantize(
    values: Vector, norms: Vector, levels: int, width: int, random: np.random.SFC64, packed: NDArray[np.uint8]
) -> None:
    """Quantize values at random to levels, and pack these; see `Qsgd`.

    Args:
        values: the values `[n]`.
        norms: the norm of each bucket; the values of one that is zero or NaN become zero.
        levels: the largest level.
        width: the bits of a code.
        random: the generator; two values take one number. Its state is undefined afterwards.
        packed: gets the codes.
    """
    for tile in tiles(len(values)):
        buckets = buckets_of(values[tile])
        of_rows = norms[tile.start // BUCKET :][: len(buckets), None]
        usable = of_rows > 0
        shares = np.where(usable, buckets, 0)
        shares /= np.where(usable, of_rows, 1)
        shares *= np.float32(levels)
        drawn = random.random_raw(shares.size // 2).view(np.uint32) >> 8
        magnitudes = np.abs(shares).ravel()
        magnitudes += drawn.astype(np.float32) * np.float32(2.0**-24)
        # Rounding may lead to the level after the largest.
        found = np.minimum(magnitudes.astype(np.uint8), np.uint8(levels))
        codes = np.where(shares.ravel() < 0, np.uint8(levels) - found, np.uint8(levels) + found)
        part = packed[tile.start * width // 8 : -(-tile.stop * width // 8)]
        pack_codes(codes[: tile.stop - tile.start], width, part)


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


def elias_delta(number: int) -> np.uint64:
    """Return the Elias delta code of a number above 0, below 2^48, with its length from bit 48 on.

    It is zeros, the number of binary digits, and the digits after the first.
    """
    digits = 1
    while number >> digits:
        digits += 1
    more = 0
    while digits >> (more + 1):
        more += 1
    return np.uint64(digits << (digits - 1) | number ^ 1 << (digits - 1) | (2 * more + digits) << 48)


_CODES = np.array([elias_delta(number) for number in range(256)])
_LENGTH, _CODE = np.uint64(48), np.uint64((1 << 48) - 1)
_ONE, _FIVE, _WORD = np.uint64(1), np.uint64(5), np.uint64(32)
_DRAWN = 1 << 12
"""Values for which random numbers are drawn at a time."""


def dither(
    values: Vector, state: NDArray[np.uint64], levels: int, scale: float, words: NDArray[np.uint32], natural: bool
) -> int:
    """Quantize values at random to levels, and write the levels that are not zero as bits; see `Dithering`.

    Args:
        values: the values `[n]`, n < 2^31.
        state: the two words of the generator xorshift128+, which are changed: each value takes one number.
        levels: the largest level, below 2^16.
        scale: the magnitude of the largest level; above 0.
        words: gets the bits, the first in the highest bit of the first word; has one word more than they need.
        natural: whether levels are powers of two.

    Returns:
        The number of bits.
    """
    a, b, last = state[0], state[1], -1
    filled, held, pending = np.uint64(0), np.uint64(0), np.uint64(0)
    drawn, shares, found = np.empty(_DRAWN, np.uint64), np.empty(_DRAWN), np.empty(_DRAWN, np.int64)
    places = np.empty(_DRAWN, np.int64)
    exponents = shares.view(np.int64)
    for start in range(0, len(values), _DRAWN):
        part = values[start : start + _DRAWN]
        negative = part.view(np.uint32)
        for i in range(len(part)):
            drawn[i], a, b = xorshift(a, b)
        if natural:
            for i in range(len(part)):
                share, whole, length = np.float64(abs(part[i])) / scale * levels, 0, 1
                if share > 1.0:
                    shares[i] = np.ceil(share) - 1.0
                    whole = length = 1 << ((exponents[i] >> 52) - 1023)
                rest = (share - whole) / length
                found[i] = whole + length * (np.float64(drawn[i]) < rest * 18446744073709551615.0)
        else:
            for i in range(len(part)):
                single = np.float32(np.float64(abs(part[i])) / scale * levels)
                whole = int(single)
                rest = np.float64(single - np.float32(whole))
                found[i] = whole + (np.float64(drawn[i]) < rest * 18446744073709551615.0)
        count = 0
        for i in range(len(part)):  # without a branch, which would be mispredicted often
            found[i] = min(found[i], levels)
            places[count] = i
            count += found[i] > 0
        for i in places[:count]:
            distance, level = start + i - last, found[i]
            last = start + i
            first = _CODES[np.uint64(distance)] if distance < 256 else elias_delta(distance)
            second = _CODES[np.uint64(level)] if level < 256 else elias_delta(level)
            size = second >> _LENGTH
            code = (first & _CODE) << (size + _ONE) | np.uint64(negative[i] >> 31) << size | second & _CODE
            left = (first >> _LENGTH) + size + _ONE
            while left:
                size = min(left, _WORD)
                left -= size
                held = held << size | code >> left & ((_ONE << size) - _ONE)
                pending += size
                words[filled] = held >> (pending & (_WORD - _ONE)) & np.uint64(0xFFFFFFFF)
                filled += pending >> _FIVE  # until it is full, the word is written again
                pending &= _WORD - _ONE
    words[filled] = held << (_WORD - pending) & np.uint64(0xFFFFFFFF)
    state[0], state[1] = a, b
    return int(filled * _WORD + pending)


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
                product = np.float32(np.float32(number) * scale)
                magnitude = np.float32(product / np.float32(levels))
                if product == np.inf:
                    magnitude = np.float32(np.float64(number) * np.float64(scale) / np.float64(levels))
                values[last] = -magnitude if negative else magnitude
    return True
