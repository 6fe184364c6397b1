"""The functions of `hpcps.numerics.coding`, compiled."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from hpcps.numerics import coding
from hpcps.numerics.blocks import LANES
from hpcps.numerics.kernels.compiled import kernel
from hpcps.numerics.kernels.places import address
from hpcps.numerics.layout import Vector

_HALVES = bool(get_host_cpu_features().get("f16c"))
"""Whether the processor converts float16; numba has no function for those that do not."""

_xorshift = kernel(coding.xorshift)


def _drawing(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a loop that calls the generator, with the compiled generator."""
    names = {**vars(coding), "xorshift": _xorshift}
    return kernel(FunctionType(function.__code__, names, function.__name__))


@intrinsic
def _convert_lanes(context: Any, source: Any, target: Any, narrow: Any) -> Any:
    """Convert 16 float32 at an address to float16 at another, or the other way if `narrow`, a literal, is False."""
    if not isinstance(narrow, types.BooleanLiteral):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        single, half = (ir.VectorType(kind, LANES) for kind in (ir.FloatType(), ir.HalfType()))
        given, wanted = (single, half) if narrow.literal_value else (half, single)
        value = builder.load(builder.inttoptr(arguments[0], given.as_pointer()))
        value.align = 2
        value = builder.fptrunc(value, half) if narrow.literal_value else builder.fpext(value, single)
        builder.store(value, builder.inttoptr(arguments[1], wanted.as_pointer())).align = 2
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, narrow), generate


@kernel
def _narrow_lanes(bits: NDArray[np.uint32], source: int, target: int) -> bool:
    largest = np.uint32(0)
    for tile in range(0, len(bits), coding.TILE):
        stop = min(tile + coding.TILE, len(bits))
        part = bits[tile:stop]
        for i in range(len(part)):
            largest = max(largest, part[i] & np.uint32(0x7FFFFFFF))
        for i in range(tile, stop, LANES):
            _convert_lanes(source + 4 * i, target + 2 * i, True)
    return bool(largest >= np.uint32(0x477FF000))  # what becomes infinite: 65520 and more


@kernel
def _widen_lanes(source: int, target: int, lanes: int) -> None:
    for i in range(lanes):
        _convert_lanes(source + 2 * LANES * i, target + 4 * LANES * i, False)


def narrow(values: Vector, halves: NDArray[np.float16]) -> bool:
    """Write float32 values as float16, as `coding.narrow` does, ten times as fast."""
    whole = len(values) // LANES * LANES if _HALVES else 0
    infinite = _narrow_lanes(values[:whole].view(np.uint32), address(values), address(halves))
    return coding.narrow(values[whole:], halves[whole:]) or infinite


def widen(halves: NDArray[np.float16], values: Vector) -> None:
    """Write float16 values as float32, as `coding.widen` does, 8 to 40 times as fast."""
    lanes = len(values) // LANES if _HALVES else 0
    _widen_lanes(address(halves), address(values), lanes)
    coding.widen(halves[LANES * lanes :], values[LANES * lanes :])


@kernel
def round_to_upper(bits: NDArray[np.uint32], upper: NDArray[np.uint16]) -> bool:
    """Round the bits of float32 values as `coding.round_to_upper` does."""
    largest = np.uint32(0)
    for i in range(len(bits)):
        value = bits[i]
        largest = max(largest, value & np.uint32(0x7FFFFFFF))
        upper[i] = (value + np.uint32(0x7FFF) + (value >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
    return bool(largest >= np.uint32(0x7F7F8000))


select_by_heap = kernel(coding.select_by_heap)
draw_indices = _drawing(coding.draw_indices)
dither = _drawing(coding.dither)
undither = kernel(coding.undither)


@kernel
def select_largest(bits: NDArray[np.uint32], pairs: NDArray[np.uint32]) -> None:
    """Select the values of largest magnitude as `coding.select_largest` does."""
    left, found, known = len(pairs), np.uint32(0), 31
    counts = np.empty(2048, np.int64)
    for width in (11, 10, 10):
        shift, mask = np.uint32(known - width), np.uint32((1 << width) - 1)
        counts[:] = 0
        if known == 31:
            for value in bits:
                counts[(value & np.uint32(0x7FFFFFFF)) >> shift] += 1
        else:
            for value in bits:
                if (value & np.uint32(0x7FFFFFFF)) >> np.uint32(known) == found:
                    counts[value >> shift & mask] += 1
        place = (1 << width) - 1
        while counts[place] < left:
            left -= counts[place]
            place -= 1
        found, known = found << np.uint32(width) | np.uint32(place), known - width
    filled = 0
    for i in range(len(bits)):
        if filled == len(pairs):
            break
        # The next pair overwrites this one unless it is chosen: a branch would be mispredicted often.
        pairs[filled, 0], pairs[filled, 1] = i, bits[i]
        magnitude = bits[i] & np.uint32(0x7FFFFFFF)
        tied = magnitude == found and left > 0
        left -= tied
        filled += tied or magnitude > found
