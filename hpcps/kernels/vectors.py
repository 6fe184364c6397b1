"""What Python cannot say: memory at an address, and sixteen numbers at a time in a processor's registers.

A vector of 16 float32 is one register with AVX-512, two with AVX2; LLVM splits it as the processor needs.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hpcps.blocks import LANES

WIDTH = 4 * LANES
"""Bytes of sixteen columns of a row."""

I64 = ir.IntType(64)
SINGLE, DOUBLE = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(ir.DoubleType(), LANES)


@intrinsic
def floats_at(context: Any, address: Any) -> Any:
    """Return the address as a pointer to float32."""
    signature = types.CPointer(types.float32)(types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return signature, generate


@intrinsic
def bits_at(context: Any, address: Any) -> Any:
    """Return the address as a pointer to int32: the bits of float32."""
    signature = types.CPointer(types.int32)(types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))

    return signature, generate


def load(builder: Any, address: Any, kind: Any = SINGLE) -> Any:
    """Return the 16 numbers of 4 bytes at an address."""
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = 4
    return value


def store(builder: Any, value: Any, address: Any) -> None:
    """Put 16 numbers of 4 bytes to an address."""
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 4


def prefetch(builder: Any, address: Any) -> None:
    """Ask for what comes 2 KiB after an address, which may be nobody's, to come into the second-level cache.

    The processor does that itself, but begins anew with every piece of an update.
    """
    pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    ahead = builder.inttoptr(builder.add(address, ir.Constant(I64, 2048)), pointer)
    builder.call(function, [ahead, number(0), number(2), number(1)])


def _fold(builder: Any, value: Any, width: int) -> Any:
    """Add up a vector's lanes as `hpcps.blocks.segment_sums` does: those 8 apart, then 4, 2 and 1."""
    undefined = ir.Constant(value.type, ir.Undefined)
    while width > 1:
        width //= 2
        chosen = ir.VectorType(ir.IntType(32), width)
        low = builder.shuffle_vector(value, undefined, ir.Constant(chosen, list(range(width))))
        high = builder.shuffle_vector(value, undefined, ir.Constant(chosen, list(range(width, 2 * width))))
        value = builder.fadd(low, high)
        undefined = ir.Constant(value.type, ir.Undefined)
    return builder.extract_element(value, ir.Constant(ir.IntType(32), 0))


@intrinsic
def products_of(context: Any, u: Any, v: Any, count: Any) -> Any:
    """Return <u, v> and |u|^2 of `count` float32 at two addresses, a multiple of 16, in float64, by lanes."""
    signature = types.UniTuple(types.float64, 2)(types.int64, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        u, v, count = arguments
        zero = ir.Constant(DOUBLE, [ir.Constant(ir.DoubleType(), 0.0)] * LANES)
        inner, squares = (cgutils.alloca_once_value(builder, zero) for _ in range(2))
        with cgutils.for_range(builder, builder.sdiv(count, ir.Constant(I64, LANES))) as loop:
            offset = builder.mul(loop.index, ir.Constant(I64, 4 * LANES))
            prefetch(builder, builder.add(u, offset))
            a, b = (builder.fpext(load(builder, builder.add(place, offset)), DOUBLE) for place in (u, v))
            for total, factor in ((inner, b), (squares, a)):
                # A product of two float32 is exact in float64: fused or not, the sum is the same.
                product = builder.fmul(a, factor, flags=("contract",))
                builder.store(builder.fadd(builder.load(total), product, flags=("contract",)), total)
        sums = [_fold(builder, builder.load(total), LANES) for total in (inner, squares)]
        return context.make_tuple(builder, signature.return_type, sums)

    return signature, generate
