"""Compressors that round each value: to 16-bit floats, and to 8-bit integers."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from hpcps.compression.base import Code, Compressor, Granularity, Kept, coding_for, require_size
from hpcps.numerics.coding import tiles
from hpcps.numerics.layout import Vector


class Fp16(Compressor):
    """Half precision: 16 bits a value, rounded to nearest; finite values beyond ±65504 become ±65504."""

    kind: Literal["fp16"] = "fp16"
    granularity: ClassVar[Granularity] = "coordinate"

    def most_bytes(self, n: int) -> int:
        return 2 * n

    def write(self, values: Vector, code: Code, kept: Kept) -> int:
        halves = code[: 2 * len(values)].view(np.float16)
        if coding_for(len(values)).narrow(values, halves):
            for tile in tiles(len(values)):
                halves[tile] = np.where(np.isfinite(values[tile]), np.clip(values[tile], -65504, 65504), values[tile])
        return 2 * len(values)

    def read(self, code: Code, values: Vector) -> None:
        require_size(code, 2 * len(values))
        coding_for(len(values)).widen(code.view(np.float16), values)


class Bf16(Compressor):
    """Brain floating point: the upper 16 bits of float32, rounded to nearest, ties to even."""

    kind: Literal["bf16"] = "bf16"
    granularity: ClassVar[Granularity] = "coordinate"

    def most_bytes(self, n: int) -> int:
        return 2 * n

    def write(self, values: Vector, code: Code, kept: Kept) -> int:
        upper = code[: 2 * len(values)].view(np.uint16)
        if coding_for(len(values)).round_to_upper(values.view(np.uint32), upper):
            for tile in tiles(len(values)):
                _bound(values[tile], upper[tile])
        return 2 * len(values)

    def read(self, code: Code, values: Vector) -> None:
        require_size(code, 2 * len(values))
        coding_for(len(values)).lengthen(code.view(np.uint16), values.view(np.uint32))


def _bound(values: Vector, rounded: NDArray[np.uint16]) -> None:
    """Keep NaN and infinities, and bound finite values that were rounded to an infinity."""
    sign = (values.view(np.uint32) >> 16 & 0x8000).astype(np.uint16)
    infinite = np.isfinite(values) & ((rounded & 0x7FFF) >= 0x7F80)
    rounded[infinite] = sign[infinite] | np.uint16(0x7F7F)
    rounded[np.isnan(values)] = 0x7FC0


_SMALLEST_SCALE = np.finfo(np.float32).tiny
"""The smallest normal number: smaller ones have fewer digits, and some processors compute with zero instead."""

_LARGEST_SCALE = np.nextafter(np.finfo(np.float32).max / np.float32(127), np.float32(0))


class Int8(Compressor):
    """8-bit integers, uniform: the block's largest absolute value, divided by 127, and a code from -127 to 127 a value.

    The encoding is the scale, float32, then the codes. The scale is at least the smallest normal number of float32, so
    a block whose largest absolute value is below 1.5e-36 has fewer codes, and values below 5.8e-39 become zero.
    """

    kind: Literal["int8"] = "int8"

    def most_bytes(self, n: int) -> int:
        return 4 + n

    def write(self, values: Vector, code: Code, kept: Kept) -> int:
        loops = coding_for(len(values))
        largest = np.uint32(loops.largest_magnitude(values.view(np.uint32))).view(np.float32)
        scale = code[:4].view(np.float32)
        codes = code[4 : 4 + len(values)].view(np.int8)
        if not np.isfinite(largest) or largest == 0:
            scale[0] = 0 if largest == 0 else np.nan
            codes[:] = 0
            return 4 + len(values)
        # The product of 127 and the scale must not be an infinity.
        scale[0] = min(largest / np.float32(127), _LARGEST_SCALE)
        factor = np.float32(127) / largest
        if scale[0] < _SMALLEST_SCALE:
            scale[0], factor = _SMALLEST_SCALE, 1 / _SMALLEST_SCALE
        loops.round_products(values, factor, codes)
        return 4 + len(values)

    def read(self, code: Code, values: Vector) -> None:
        require_size(code, 4 + len(values))
        scale, codes = code[:4].view(np.float32)[0], code[4:].view(np.int8)
        if scale < 0:
            raise ValueError(f"a scale of {scale}")
        factor = scale if np.isfinite(scale) else np.float32(np.nan)
        with np.errstate(over="ignore"):
            for tile in tiles(len(values)):
                values[tile] = codes[tile]
                values[tile] *= factor
