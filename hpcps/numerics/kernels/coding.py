"""The functions of `hpcps.numerics.coding`, compiled: those that are worth it, and all for many values."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

import numpy as np
from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from hpcps.numerics import coding
from hpcps.numerics.blocks import LANES
from hpcps.numerics.coding import drawing
from hpcps.numerics.kernels.compiled import kernel
from hpcps.numerics.kernels.pairs import fold
from hpcps.numerics.kernels.pointers import address
from hpcps.numerics.layout import Vector

_HALVES = bool(get_host_cpu_features().get("f16c"))
"""Whether the processor converts float16; numba has no function for those that do not."""

_CALLED = {name: kernel(getattr(drawing, name)) for name in ("xorshift", "elias_delta")}


def _calling(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a loop that calls other functions of its module, with these compiled."""
    return kernel(FunctionType(function.__code__, {**vars(drawing), **_CALLED}, function.__name__))


@intrinsic
def _convert_lanes(context: Any, source: Any, target: Any, narrow: Any) -> Any:
    """Convert 16 float32 at an address to float16 at another, or the other way if `narrow`, a literal, is False.

    It returns the lanes that become infinite or NaN, as bits: float32 of 65520 and more. For the other way it is 0.
    """
    if not isinstance(narrow, types.BooleanLiteral):
        return None

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        single, half = (ir.VectorType(kind, LANES) for kind in (ir.FloatType(), ir.HalfType()))
        given, wanted = (single, half) if narrow.literal_value else (half, single)
        value = builder.load(builder.inttoptr(arguments[0], given.as_pointer()))
        value.align = 2
        converted = builder.fptrunc(value, half) if narrow.literal_value else builder.fpext(value, single)
        builder.store(converted, builder.inttoptr(arguments[1], wanted.as_pointer())).align = 2
        if not narrow.literal_value:
            return ir.Constant(ir.IntType(LANES), 0)
        integers = ir.VectorType(ir.IntType(32), LANES)
        mask, least = (ir.Constant(integers, [number] * LANES) for number in (0x7FFFFFFF, 0x477FF000))
        magnitudes = builder.and_(builder.bitcast(value, integers), mask)
        return builder.bitcast(builder.icmp_unsigned(">=", magnitudes, least), ir.IntType(LANES))

    return types.uint16(types.int64, types.int64, narrow), generate


@kernel
def _narrow_lanes(source: int, target: int, lanes: int) -> bool:
    infinite = np.uint16(0)
    for i in range(lanes):
        infinite |= _convert_lanes(source + 4 * LANES * i, target + 2 * LANES * i, True)
    return bool(infinite)


@kernel
def _widen_lanes(source: int, target: int, lanes: int) -> None:
    for i in range(lanes):
        _convert_lanes(source + 2 * LANES * i, target + 4 * LANES * i, False)


def narrow(values: Vector, halves: NDArray[np.float16]) -> bool:
    """Write float32 values as float16, as `coding.narrow` does, ten times as fast."""
    lanes = len(values) // LANES if _HALVES else 0
    infinite = _narrow_lanes(address(values), address(halves), lanes)
    return coding.narrow(values[LANES * lanes :], halves[LANES * lanes :]) or infinite


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


@kernel
def lengthen(upper: NDArray[np.uint16], bits: NDArray[np.uint32]) -> None:
    """Write upper halves of bits as `coding.lengthen` does."""
    for i in range(len(bits)):
        bits[i] = np.uint32(upper[i]) << np.uint32(16)


@kernel
def largest_magnitude(bits: NDArray[np.uint32]) -> np.uint32:
    """Return the bits of the largest magnitude as `coding.largest_magnitude` does."""
    largest = np.uint32(0)
    for value in bits:
        largest = max(largest, value & np.uint32(0x7FFFFFFF))
    return largest


@kernel
def round_products(values: Vector, factor: np.float32, codes: NDArray[np.int8]) -> None:
    """Round products as `coding.round_products` does: the last place of 1.5 · 2^23 is 1."""
    for i in range(len(values)):
        codes[i] = np.int8(np.int32((values[i] * factor + np.float32(12582912.0)) - np.float32(12582912.0)))


@kernel
def pack_signs(values: Vector, words: NDArray[np.uint32]) -> None:
    """Write signs as `coding.pack_signs` does."""
    for number in range(len(words)):
        part, word = values[32 * number : 32 * (number + 1)], np.uint32(0)
        for i in range(len(part)):
            word |= np.uint32(part[i] < 0) << np.uint32(31 - i)
        words[number] = word


@kernel
def sum_magnitudes(values: Vector) -> float:
    """Return the sum of magnitudes, in another order than `coding.sum_magnitudes`."""
    lanes, whole = np.zeros(LANES), len(values) // LANES * LANES
    for begin in range(0, whole, LANES):
        for lane in range(LANES):
            lanes[lane] += np.float64(abs(values[begin + lane]))
    for i in range(whole, len(values)):
        lanes[0] += np.float64(abs(values[i]))
    return float(lanes.sum())


@kernel
def sum_squares(values: Vector, sums: NDArray[np.float64]) -> None:
    """Write sums of squares as `coding.sum_squares` does."""
    lanes = np.empty(LANES)
    for bucket in range(len(sums)):
        part = values[coding.BUCKET * bucket : coding.BUCKET * (bucket + 1)]
        lanes[:] = 0
        for begin in range(0, len(part), LANES):
            for lane in range(min(LANES, len(part) - begin)):
                value = np.float64(part[begin + lane])
                lanes[lane] += value * value
        fold(lanes)
        sums[bucket] = lanes[0]


def quantize(
    values: Vector, norms: Vector, levels: int, width: int, random: np.random.SFC64, packed: NDArray[np.uint8]
) -> None:
    """Quantize values as `coding.quantize` does, 12 times as fast."""
    _quantize(values, norms, levels, width, random.state["state"]["state"], packed)


@kernel
def _quantize(
    values: Vector, norms: Vector, levels: int, width: int, state: NDArray[np.uint64], packed: NDArray[np.uint8]
) -> None:
    a, b, c, counter = state[0], state[1], state[2], state[3]
    numbers, codes = np.empty(coding.BUCKET // 2, np.uint64), np.empty(coding.BUCKET, np.uint8)
    drawn, largest, each = numbers.view(np.uint32), np.uint8(levels), 8 // width
    for bucket in range(len(norms)):
        for i in range(len(numbers)):  # SFC64
            numbers[i] = a + b + counter
            counter += np.uint64(1)
            a, b = b ^ b >> np.uint64(11), c + (c << np.uint64(3))
            c = (c << np.uint64(24) | c >> np.uint64(40)) + numbers[i]
        norm, part = norms[bucket], values[coding.BUCKET * bucket : coding.BUCKET * (bucket + 1)]
        for i in range(len(part)):
            share = part[i] / norm * np.float32(levels) if norm > 0 else np.float32(0)
            random = np.float32(np.int32(drawn[i] >> np.uint32(8))) * np.float32(2.0**-24)
            level = min(np.uint8(np.int32(abs(share) + random)), largest)
            codes[i] = largest - level if share < 0 else largest + level
        codes[len(part) :] = 0
        out = packed[len(codes) // each * bucket : len(codes) // each * (bucket + 1)]
        if width == 8:
            out[:] = codes[: len(part)]
        elif width == 4:
            for i in range(len(out)):
                out[i] = codes[2 * i] | codes[2 * i + 1] << 4
        else:
            for i in range(len(out)):
                out[i] = codes[4 * i] | codes[4 * i + 1] << 2 | codes[4 * i + 2] << 4 | codes[4 * i + 3] << 6


select_by_heap = kernel(coding.select_by_heap)
draw_indices = _calling(coding.draw_indices)
dither = _calling(coding.dither)
undither = kernel(coding.undither)


_PAIRS = 128
"""Products that numpy adds in 8 sums; it divides more into two parts."""


@intrinsic
def _add_in_eight_sums(context: Any, a: Any, b: Any, groups: Any) -> Any:
    """Return the sum of products of float32 at two addresses, of which each eighth enters the same of eight sums."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        kind, integer = ir.VectorType(ir.FloatType(), 8), ir.IntType(64)

        def product(group: Any) -> Any:
            offset = builder.mul(group, integer(32))
            places = (builder.inttoptr(builder.add(start, offset), kind.as_pointer()) for start in arguments[:2])
            return builder.fmul(*(builder.load(place, align=4) for place in places))

        sums = cgutils.alloca_once_value(builder, product(integer(0)))
        with cgutils.for_range(builder, builder.sub(arguments[2], integer(1))) as loop:
            following = product(builder.add(loop.index, integer(1)))
            builder.store(builder.fadd(builder.load(sums), following), sums)
        left = [builder.extract_element(builder.load(sums), integer(lane)) for lane in range(8)]
        while len(left) > 1:
            left = [builder.fadd(*pair) for pair in zip(left[::2], left[1::2], strict=True)]
        return left[0]

    return types.float32(types.int64, types.int64, types.int64), generate


@kernel
def _sum_of_products(a: Vector, b: Vector) -> np.float32:
    """Return the sum of products in the order of numpy's sums, in pairs."""
    n = len(a)
    if n > _PAIRS:
        half = n // 2 // 8 * 8
        return np.float32(_sum_of_products(a[:half], b[:half]) + _sum_of_products(a[half:], b[half:]))
    whole, total = n // 8 * 8, np.float32(0)
    if whole:
        total = _add_in_eight_sums(a.ctypes.data, b.ctypes.data, whole // 8)
    for i in range(whole, n):
        total += a[i] * b[i]
    return total


@kernel
def product(matrix: Vector, right: Vector) -> Vector:
    """Return the product of matrices as `coding.product` does."""
    transposed = right.T.copy()
    result = np.empty((len(matrix), len(transposed)), np.float32)
    for row in range(len(matrix)):
        for k in range(len(transposed)):
            result[row, k] = _sum_of_products(matrix[row], transposed[k])
    return result


@kernel
def transposed_product(matrix: Vector, left: Vector) -> Vector:
    """Return the product of matrices as `coding.transposed_product` does."""
    (rows, columns), rank = matrix.shape, left.shape[1]
    result, total = np.zeros((rank, columns), np.float32), np.empty((rank, columns), np.float32)
    at_once = max(1, coding.TILE // columns)
    for first in range(0, rows, at_once):
        for row in range(first, min(first + at_once, rows)):
            for k in range(rank):
                factor, sums = left[row, k], total[k]
                if row == first:
                    for i in range(columns):
                        sums[i] = matrix[row, i] * factor
                else:
                    for i in range(columns):
                        sums[i] += matrix[row, i] * factor
        result += total
    return result.T


@kernel
def multiply_out(p: Vector, q: Vector, values: Vector) -> None:
    """Write the product of matrices as `coding.multiply_out` does."""
    columns, transposed = len(q), q.T.copy()
    for row in range(len(p)):
        out = values[row * columns : (row + 1) * columns]
        for k in range(len(transposed)):
            factor, others = p[row, k], transposed[k]
            if k == 0:
                for i in range(len(out)):
                    out[i] = factor * others[i]
            else:
                for i in range(len(out)):
                    out[i] += factor * others[i]


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
