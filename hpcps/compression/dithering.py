"""Random dithering, as BytePS does it: levels that are drawn so that the mean is the value."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from hpcps.compression.base import Code, Compressor, Kept, coding_for
from hpcps.numerics.coding import tiles
from hpcps.numerics.layout import Vector

_NORMAL, _LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
"""The smallest normal number of float32, and the largest number."""


class Dithering(Compressor):
    """Levels between zero and the norm of the block, drawn at random without bias; the bytes are those of BytePS 0.2.5.

    A value x of a block with the norm s lies between two levels, and one of them is drawn so that the mean is x.
    `linear`: the levels are 0, s/k, 2s/k, …, s; `natural`: 0 and s/2^(k-1), …, s/2, s. The encoding is, for each level
    q that is not zero, the Elias delta code of the distance from the one before, the sign, and the Elias delta code of
    q, as bits in little-endian words of 32, the first in the highest bit; then the number of bits, uint32, and s,
    float32. No level is above the largest, also if s was rounded down; in this case, and if squares of values are not
    normal numbers of float32, the bytes are not those of BytePS.
    Each block has a generator like that of `randomk`. (Horváth et al., "Natural compression for distributed deep
    learning", 2019, arXiv 1905.10988.)
    """

    kind: Literal["dithering"] = "dithering"
    k: int = Field(16, ge=1, le=65_535, description="Levels above zero; with `natural` at most 16.")
    partition: Literal["linear", "natural"] = Field("linear", description="The distances between levels.")
    norm: Literal["max", "l2"] = Field("max", description="The largest level: the largest magnitude or Euclidean norm.")
    seed: int = Field(1, ge=1, le=2**32 - 1, description="Seed of the generator of each block.")

    @model_validator(mode="after")
    def _few_powers(self) -> Dithering:
        if self.partition == "natural" and self.k > 16:
            raise ValueError(f'k = {self.k} is too large for partition = "natural": use 16 or less')
        return self

    @property
    def levels(self) -> int:
        """The largest level, in steps of the smallest."""
        return 2 ** (self.k - 1) if self.partition == "natural" else self.k

    def most_bytes(self, n: int) -> int:
        digits = self.levels.bit_length()
        return 4 * -(-n * (2 + digits - 1 + 2 * digits.bit_length() - 1) // 32) + 8

    def write(self, values: Vector, code: Code, kept: Kept) -> int:
        words = code[: self.most_bytes(len(values))].view(np.uint32)
        state, scale, bits = kept.setdefault("generator", np.full(2, self.seed, np.uint64)), self._norm(values), 0
        if np.isfinite(scale) and scale > 0:
            with np.errstate(over="ignore"):
                loop = coding_for(len(values), looped=True).dither
                bits = loop(values, state, self.levels, scale, words, self.partition == "natural")
        used = -(-bits // 32)
        words[used] = bits
        words[used + 1 : used + 2].view(np.float32)[0] = scale if np.isfinite(scale) else np.nan
        return 4 * used + 8

    def _norm(self, values: Vector) -> float:
        if self.norm == "max":
            largest = coding_for(len(values)).largest_magnitude(values.view(np.uint32))
            return float(np.uint32(largest).view(np.float32))
        total = _sum_of_squares(values, np.float32)
        if not len(values) * _NORMAL <= total < np.inf:
            total = _sum_of_squares(values, np.float64)
        return float(np.minimum(np.sqrt(total), _LARGEST)) if np.isfinite(total) else np.nan

    def read(self, code: Code, values: Vector) -> None:
        if len(code) < 8 or len(code) % 4:
            raise ValueError(f"an encoding of {len(code)} bytes")
        words, bits = code[:-8].view(np.uint32), int(code[-8:-4].view(np.uint32)[0])
        scale = code[-4:].view(np.float32)[0]
        if len(words) != -(-bits // 32):
            raise ValueError(f"{bits} bits in {len(words)} words")
        if scale < 0:
            raise ValueError(f"a scale of {scale}")
        if not np.isfinite(scale):
            values[:] = np.nan
        elif not coding_for(len(values), looped=True).undither(words, bits, self.levels, scale, values):
            raise ValueError("bits that are no levels of these values")


def _sum_of_squares(values: Vector, kind: type[np.floating]) -> float:
    """Return the sum, one after another in float64, of squares of a type; BytePS has squares of float32."""
    total = 0.0
    for tile in tiles(len(values)):
        sums = np.empty(tile.stop - tile.start + 1)
        sums[0] = total
        sums[1:] = np.square(values[tile], dtype=kind)
        total = float(np.add.accumulate(sums, out=sums)[-1])
    return total
