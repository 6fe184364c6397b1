"""Conversions of values to fewer bits, and of codes to bytes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics.layout import Vector

TILE = 1 << 14
"""Elements that are encoded at a time: temporary arrays of a tile stay in the cache."""

MAGNITUDE = np.uint32(0x7FFFFFFF)
"""All bits of a float32 but its sign: as integers, they are in the order of the magnitudes, and NaN is the largest."""


def tiles(size: int) -> Iterator[slice]:
    """Yield the tiles of a vector of `size` elements; all but the last have a whole number of bytes of bits."""
    for start in range(0, size, TILE):
        yield slice(start, min(start + TILE, size))


def narrow(values: Vector, halves: NDArray[np.float16]) -> bool:
    """Write float32 values as float16, rounded to nearest, ties to even; infinity for NaN and beyond the range.

    numpy converts values that are normal as float16 at 1.5 GB/s, but those below 6e-5, which updates have, at 0.06
    GB/s; this function converts both at 1.4 GB/s.

    Returns:
        Whether one is infinite.
    """
    largest = 0
    for tile in tiles(len(values)):
        bits = values[tile].view(np.uint32)
        absolute = bits & MAGNITUDE
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
        largest = max(largest, int((bits[tile] & MAGNITUDE).max()))
        # Adding half of the last place, less one for even values, carries into it as rounding does.
        rounded = bits[tile] >> 16
        rounded &= 1
        rounded += 0x7FFF
        rounded += bits[tile]
        rounded >>= 16
        upper[tile] = rounded
    return largest >= 0x7F7F8000


def lengthen(upper: NDArray[np.uint16], bits: NDArray[np.uint32]) -> None:
    """Write the upper halves of the bits of float32 values as all bits."""
    for tile in tiles(len(bits)):
        bits[tile] = upper[tile]
        bits[tile] <<= 16


def largest_magnitude(bits: NDArray[np.uint32]) -> np.uint32:
    """Return the bits of the largest magnitude of float32 values; NaN is the largest."""
    return np.uint32(max(((bits[tile] & MAGNITUDE).max() for tile in tiles(len(bits))), default=0))


def round_products(values: Vector, factor: np.float32, codes: NDArray[np.int8]) -> None:
    """Round the products of values and a factor, from -127 to 127, to nearest, ties to even."""
    for tile in tiles(len(values)):
        product = values[tile] * factor
        codes[tile] = np.rint(product, out=product)


def pack_signs(values: Vector, words: NDArray[np.uint32]) -> None:
    """Write a bit for each value, 1 if it is negative, in words of 32, the first in the highest bit."""
    bits = words.view(np.uint8)
    bits[-4:] = 0
    for tile in tiles(len(values)):
        bits[tile.start // 8 : -(-tile.stop // 8)] = np.packbits(values[tile] < 0)
    words.byteswap(inplace=True)


def sum_magnitudes(values: Vector) -> float:
    """Return the sum of the magnitudes in float64, in any order."""
    return sum(float(np.add.reduce(np.abs(values[tile]), dtype=np.float64)) for tile in tiles(len(values)))


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
