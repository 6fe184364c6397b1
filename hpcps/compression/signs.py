"""Compressors that send one bit a value, its sign."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.compression.base import Code, Compressor, Granularity, Kept, coding_for, finite, require_size
from hpcps.numerics.coding import tiles
from hpcps.numerics.layout import Vector


class Sign(Compressor):
    """The signs alone, each of which counts as ±`scale`; zero counts as +`scale`.

    The encoding is the scale, float32, then the bits: value 8i + j is bit j of byte i, counted from the highest, and 1
    if it is negative. (Bernstein et al., "signSGD: compressed optimisation for non-convex problems", 2018.)
    """

    kind: Literal["sign"] = "sign"
    granularity: ClassVar[Granularity] = "coordinate"
    scale: float = Field(0.001, ge=1e-30, le=1e30, description="The absolute value of what is decoded.")

    def most_bytes(self, n: int) -> int:
        return 4 + -(-n // 8)

    def write(self, values: Vector, code: Code, kept: Kept) -> int:
        bits = code[4 : self.most_bytes(len(values))]
        for tile in tiles(len(values)):
            bits[tile.start // 8 : -(-tile.stop // 8)] = np.packbits(values[tile] < 0)
        code[:4].view(np.float32)[0] = self.scale if finite(values) else np.nan
        return self.most_bytes(len(values))

    def read(self, code: Code, values: Vector) -> None:
        require_size(code, self.most_bytes(len(values)))
        scale = code[:4].view(np.float32)[0]
        if np.isfinite(scale) and scale != np.float32(self.scale):
            raise ValueError(f"a scale of {scale} instead of {self.scale}")
        _spread(code[4:], scale, values)


class Onebit(Compressor):
    """The signs and the mean absolute value of the block, as BytePS sends them; zero counts as positive.

    The encoding is the bits in little-endian words of 32, the first value in the highest bit, then the scale, float32.
    The mean is a float64 sum in the order of the values, as in BytePS 0.2.5, so the bytes are equal.
    """

    kind: Literal["onebit"] = "onebit"
    scaling: bool = Field(True, description="Whether the scale is the mean absolute value; otherwise it is 1.")

    def most_bytes(self, n: int) -> int:
        return 4 * -(-n // 32) + 4

    def write(self, values: Vector, code: Code, kept: Kept) -> int:
        size = self.most_bytes(len(values))
        coding_for(len(values)).pack_signs(values, code[: size - 4].view(np.uint32))
        scale = mean_in_order(values) if self.scaling else np.float32(1 if finite(values) else np.nan)
        code[size - 4 : size].view(np.float32)[0] = scale
        return size

    def read(self, code: Code, values: Vector) -> None:
        require_size(code, self.most_bytes(len(values)))
        scale = code[-4:].view(np.float32)[0]
        if scale < 0 or (not self.scaling and np.isfinite(scale) and scale != 1):
            raise ValueError(f"a scale of {scale}")
        for tile in tiles(len(values)):
            words = code[tile.start // 8 : 4 * -(-tile.stop // 32)].view(np.uint32)
            _spread(words.byteswap().view(np.uint8), scale, values[tile])


def mean_in_order(values: Vector) -> np.float32:
    """Return the mean absolute value as the rounded quotient of a float64 sum that adds one value after another.

    `np.add.reduce` adds in another order, several times as fast. The bound of both errors (Higham, "Accuracy and
    stability of numerical algorithms", 2002, section 4.2) tells whether the rounded quotients may differ.
    """
    n = max(len(values), 1)
    total = coding_for(len(values)).sum_magnitudes(values)
    bound = 4 * (n + 2) * 2.0**-53
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = np.float32(total * (1 - bound) / n), np.float32(total * (1 + bound) / n)
        if low == high:
            return low
        total = 0.0
        for tile in tiles(len(values)):
            sums = np.empty(tile.stop - tile.start + 1)
            sums[0] = total
            np.abs(values[tile], out=sums[1:])
            total = float(np.add.accumulate(sums, out=sums)[-1])
        return np.float32(total / n)


def _spread(bits: Code, scale: np.float32, values: Vector) -> None:
    """Write a scale with the sign that each bit says."""
    if not np.isfinite(scale):
        values[:] = np.nan
        return
    for tile in tiles(len(values)):
        part = values[tile].view(np.uint32)
        part[:] = np.unpackbits(bits[tile.start // 8 : -(-tile.stop // 8)], count=len(part))
        part <<= 31
        part |= scale.view(np.uint32)
