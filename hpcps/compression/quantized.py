"""Compressors that send few levels, drawn at random without bias."""

from __future__ import annotations

import zlib
from typing import Any, Literal

import numpy as np
from pydantic import Field

from hpcps.compression.base import Code, Compressor, Kept, coding_for, require_size
from hpcps.numerics.coding import BUCKET, buckets_of, tiles, unpack_codes
from hpcps.numerics.layout import Vector

_LARGEST_NORM = np.float32(3.4e38)


class Qsgd(Compressor):
    """Levels between zero and the norm of 128 values, drawn at random so that the mean is the value.

    A value x of a bucket of 128 with the norm s becomes sign(x) · s · q / `levels`: q is one of the whole numbers
    beside |x| / s · `levels`, drawn so that its mean is this. The encoding is the norms, float32, then the codes
    sign(x) · q + `levels`, in 2 bits each with 1 level, 4 with at most 7, else 8, the first in the lowest bits. With
    one level and `norm = "max"` it is TernGrad. Random numbers depend on the seed, on how many updates of the block
    were encoded before, and on the norms, so that the errors of workers are independent. (Alistarh et al., "QSGD:
    communication-efficient SGD via gradient quantization and encoding", 2017.)
    """

    kind: Literal["qsgd"] = "qsgd"
    levels: int = Field(7, ge=1, le=127, description="Levels above zero.")
    norm: Literal["l2", "max"] = Field("l2", description="The largest level: the Euclidean norm or largest magnitude.")
    seed: int = Field(1, ge=1, le=2**32 - 1, description="Seed of the random numbers.")

    @property
    def width(self) -> int:
        """The bits of a code."""
        return 2 if self.levels == 1 else 4 if self.levels <= 7 else 8

    def most_bytes(self, n: int) -> int:
        return 4 * -(-n // BUCKET) + -(-n * self.width // 8)

    def write(self, values: Vector, code: Code, kept: Kept) -> int:
        size, start = self.most_bytes(len(values)), 4 * -(-len(values) // BUCKET)
        norms = code[:start].view(np.float32)
        loops = coding_for(len(values))
        self._write_norms(values, norms, loops)
        number = kept.setdefault("updates", np.zeros(1, np.uint64))
        random = np.random.SFC64([self.seed, int(number[0]), zlib.crc32(norms.tobytes())])
        number += np.uint64(1)
        loops.quantize(values, norms, self.levels, self.width, random, code[start:size])
        return size

    def _write_norms(self, values: Vector, norms: Vector, loops: Any) -> None:
        sums = np.empty(len(norms))
        if self.norm == "l2":
            loops.sum_squares(values, sums)
            np.sqrt(sums, out=sums)
        else:
            for tile in tiles(len(values)):
                sums[tile.start // BUCKET : -(-tile.stop // BUCKET)] = np.abs(buckets_of(values[tile])).max(axis=1)
        norms[:] = np.where(np.isfinite(sums), np.minimum(sums, _LARGEST_NORM), np.nan)

    def read(self, code: Code, values: Vector) -> None:
        require_size(code, self.most_bytes(len(values)))
        start = 4 * -(-len(values) // BUCKET)
        norms = code[:start].view(np.float32)
        if (norms < 0).any():
            raise ValueError(f"a norm of {norms.min()}")
        steps = np.where(norms <= _LARGEST_NORM, norms, np.float32(np.nan)) / np.float32(self.levels)
        for tile in tiles(len(values)):
            packed = code[start + tile.start * self.width // 8 : start + -(-tile.stop * self.width // 8)]
            codes = unpack_codes(packed, self.width, tile.stop - tile.start)
            if codes.max() > 2 * self.levels:
                raise ValueError(f"a code of {codes.max()}")
            np.subtract(codes, np.float32(self.levels), out=values[tile])
            values[tile] *= np.repeat(steps[tile.start // BUCKET : -(-tile.stop // BUCKET)], BUCKET)[: len(codes)]
