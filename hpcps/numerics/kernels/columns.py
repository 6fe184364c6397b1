"""Sums sixteen columns of all updates at a time in registers; every value is read once."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hpcps.numerics.blocks import LANES
from hpcps.numerics.kernels.vectors import DOUBLE, I64, SINGLE, WIDTH, ZERO, load, prefetch, spread, store

_AHEAD = 1024
"""Prefetch distance in bytes: the hardware prefetcher follows only a limited number of rows at once."""
_I32 = ir.IntType(32)
_BITS = ir.VectorType(_I32, LANES)


@intrinsic
def mean_of_columns(
    context: Any, places: Any, rows: Any, count: Any, divisor: Any, multiply: Any, base: Any, out: Any
) -> Any:
    """Compute the mean of rows of float32: the sum of each column, divided by a divisor.

    The sums are float64, in the order of the rows, from +0. The mean is added to the base, if there is one, and written
    to `out`, which may be the base. Return the largest bit pattern, without signs, of the means; and, with a base, that
    of the written values.

    Args:
        context: numba's typing context.
        places: the address of the table of the rows' addresses.
        rows: the number of rows.
        count: the number of columns, a multiple of 16.
        divisor: the divisor of the sums, or their factor.
        multiply: whether the sums are multiplied by `divisor` instead of divided.
        base: the address of the base, or 0.
        out: the address of the result.
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
            _update_largest(builder, value, worst)
            with builder.if_else(builder.icmp_signed("==", base, ir.Constant(I64, 0))) as (then, otherwise):
                with then:
                    store(builder, value, builder.add(out, offset))
                with otherwise:
                    value = builder.fadd(load(builder, builder.add(base, offset)), value)
                    _update_largest(builder, value, result)
                    store(builder, value, builder.add(out, offset))
        largest = [_largest(builder, builder.load(found)) for found in (worst, result)]
        return context.make_tuple(builder, signature.return_type, largest)

    return signature, generate


def _update_largest(builder: Any, value: Any, found: Any) -> None:
    """Update the largest bit patterns found so far, without signs, with those of a vector's lanes."""
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
