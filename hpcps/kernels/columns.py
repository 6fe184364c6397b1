"""Sixteen columns of all updates at a time, summed in a processor's registers: every value is met once."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hpcps.blocks import LANES
from hpcps.kernels.vectors import DOUBLE, I64, SINGLE, WIDTH, ZERO, load, prefetch, spread, store

_AHEAD = 1024
"""Bytes that memory is asked for ahead of their use: the processor itself follows only so many rows at once."""
_I32 = ir.IntType(32)
_BITS = ir.VectorType(_I32, LANES)


@intrinsic
def mean_of_columns(
    context: Any, places: Any, rows: Any, count: Any, divisor: Any, multiply: Any, base: Any, out: Any
) -> Any:
    """Take the mean of `count` float32, a multiple of 16, at each of `rows` addresses: their sum over a divisor.

    The sums are float64, in the order of the rows, from +0. With `multiply`, the divisor is one to multiply by. What
    comes out is added to what is at `base`, if that is an address, and written to `out`; these may be the same. Return
    the largest bit patterns, without signs, of the means, and, with a base, of what is written.

    Args:
        context: numba's.
        places: the address of the addresses.
        rows: how many there are.
        count: how many columns.
        divisor: what the sums are divided by.
        multiply: whether they are multiplied by it in its stead.
        base: an address, or 0.
        out: an address.
    """
    arguments = (types.int64, types.int64, types.int64, types.float64, types.boolean, types.int64, types.int64)
    signature = types.UniTuple(types.int32, 2)(*arguments)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        places, rows, count, divisor, multiply, base, out = arguments
        table = builder.inttoptr(places, I64.as_pointer())
        divisors = spread(builder, divisor)
        total, mean = cgutils.alloca_once_value(builder, ZERO), cgutils.alloca_once_value(builder, ZERO)
        none = ir.Constant(_BITS, [0] * LANES)
        worst, result = cgutils.alloca_once_value(builder, none), cgutils.alloca_once_value(builder, none)
        for found in (worst, result):
            builder.store(none, found)
        with cgutils.for_range(builder, builder.sdiv(count, ir.Constant(I64, LANES))) as columns:
            offset = builder.mul(columns.index, ir.Constant(I64, WIDTH))
            builder.store(ZERO, total)
            with cgutils.for_range(builder, rows) as row:
                source = builder.add(builder.load(builder.gep(table, [row.index])), offset)
                prefetch(builder, source, _AHEAD)
                value = builder.fpext(load(builder, source), DOUBLE)
                builder.store(builder.fadd(builder.load(total), value), total)
            with builder.if_else(multiply) as (then, otherwise):
                with then:
                    builder.store(builder.fmul(builder.load(total), divisors), mean)
                with otherwise:
                    builder.store(builder.fdiv(builder.load(total), divisors), mean)
            value = builder.fptrunc(builder.load(mean), SINGLE)
            _note(builder, value, worst)
            with builder.if_else(builder.icmp_signed("==", base, ir.Constant(I64, 0))) as (then, otherwise):
                with then:
                    store(builder, value, builder.add(out, offset))
                with otherwise:
                    value = builder.fadd(load(builder, builder.add(base, offset)), value)
                    _note(builder, value, result)
                    store(builder, value, builder.add(out, offset))
        largest = [_largest(builder, builder.load(found)) for found in (worst, result)]
        return context.make_tuple(builder, signature.return_type, largest)

    return signature, generate


def _note(builder: Any, value: Any, found: Any) -> None:
    """Keep the larger of the bit patterns, without signs, of what was found so far and of a vector's lanes."""
    pattern = builder.and_(builder.bitcast(value, _BITS), ir.Constant(_BITS, [0x7FFFFFFF] * LANES))
    before = builder.load(found)
    builder.store(builder.select(builder.icmp_signed(">", pattern, before), pattern, before), found)


def _largest(builder: Any, lanes: Any) -> Any:
    """Return the largest of a vector's lanes."""
    best = builder.extract_element(lanes, ir.Constant(_I32, 0))
    for lane in range(1, LANES):
        other = builder.extract_element(lanes, ir.Constant(_I32, lane))
        best = builder.select(builder.icmp_signed(">", other, best), other, best)
    return best
