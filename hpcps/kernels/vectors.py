"""What Python cannot say: memory at an address, and sixteen columns at a time in a processor's registers.

A vector of 16 float32 is one register with AVX-512, two with AVX2; LLVM splits it as the processor needs.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hpcps.blocks import LANES
from hpcps.rules.sorting import comparators

REGISTERS = 16
"""The most rows that are sorted in registers."""

_AHEAD = 4096
"""Bytes that memory is asked for ahead of their use: the processor itself begins anew with every piece of an update."""
_I64 = ir.IntType(64)
_SINGLE, _DOUBLE = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(ir.DoubleType(), LANES)


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


def _load(builder: Any, address: Any) -> Any:
    value = builder.load(builder.inttoptr(address, _SINGLE.as_pointer()))
    value.align = 4
    return value


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, _SINGLE.as_pointer())).align = 4


def _prefetch(builder: Any, address: Any) -> None:
    """Ask for the cache line at an address, which may be nobody's, to come into the second-level cache."""
    pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    builder.call(function, [builder.inttoptr(address, pointer), number(0), number(2), number(1)])


def _exchange(builder: Any, a: Any, b: Any) -> tuple[Any, Any]:
    """Return the smaller and the larger; of finite numbers one instruction each."""
    ordered = builder.fcmp_ordered("<", a, b)
    return builder.select(ordered, a, b), builder.select(ordered, b, a)


@intrinsic
def sort_columns(context: Any, address: Any, stride: Any, rows: Any) -> Any:
    """Sort the 16 columns of `rows` rows, a literal, that lie `stride` bytes apart from an address on."""
    if not isinstance(rows, types.IntegerLiteral):
        return None
    count = rows.literal_value
    signature = types.void(types.int64, types.int64, rows)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        base, stride, _ = arguments
        places = [builder.add(base, builder.mul(stride, ir.Constant(_I64, row))) for row in range(count)]
        values = [_load(builder, place) for place in places]
        for low, high in comparators(count):
            values[low], values[high] = _exchange(builder, values[low], values[high])
        for value, place in zip(values, places, strict=True):
            _store(builder, value, place)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def take_and_sort(context: Any, sources: Any, offset: Any, address: Any, worst: Any, rows: Any) -> Any:
    """Sort 16 columns of `rows` rows, a literal, on their way from where they lie to an address, 64 bytes a row.

    `sources` is the address of the rows' addresses, to which `offset` bytes are added. The largest bit patterns,
    without signs, of what is at `worst` and of the values are left there, 16 of them.
    """
    if not isinstance(rows, types.IntegerLiteral):
        return None
    count = rows.literal_value
    signature = types.void(types.int64, types.int64, types.int64, types.int64, rows)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sources, offset, address, worst, _ = arguments
        table = builder.inttoptr(sources, _I64.as_pointer())
        values = []
        bits = ir.VectorType(ir.IntType(32), LANES)
        magnitude = ir.Constant(bits, [0x7FFFFFFF] * LANES)
        place = builder.inttoptr(worst, bits.as_pointer())
        found = builder.load(place)
        found.align = 4
        for row in range(count):
            source = builder.add(builder.load(builder.gep(table, [ir.Constant(_I64, row)])), offset)
            _prefetch(builder, builder.add(source, ir.Constant(_I64, _AHEAD)))
            values.append(_load(builder, source))
            pattern = builder.and_(builder.bitcast(values[-1], bits), magnitude)
            found = builder.select(builder.icmp_signed(">", pattern, found), pattern, found)
        builder.store(found, place).align = 4
        for low, high in comparators(count):
            values[low], values[high] = _exchange(builder, values[low], values[high])
        for row, value in enumerate(values):
            _store(builder, value, builder.add(address, ir.Constant(_I64, 4 * LANES * row)))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def mean_of_rows(context: Any, address: Any, stride: Any, low: Any, high: Any, nearest: Any, out: Any) -> Any:
    """Take the mean of 16 columns of the rows `low` to `high` (exclusive), which lie `stride` bytes apart, to `out`.

    With `nearest`, that of the `high` rows nearest to this mean: in place of row k < low, row high + k if it is nearer.
    """
    signature = types.void(types.int64, types.int64, types.int64, types.int64, types.boolean, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address, stride, low, high, nearest, out = arguments
        zero = ir.Constant(_DOUBLE, [ir.Constant(ir.DoubleType(), 0.0)] * LANES)
        total, centre = (cgutils.alloca_once_value(builder, zero) for _ in range(2))
        builder.store(zero, total)

        def row(number: Any) -> Any:
            return builder.fpext(_load(builder, builder.add(address, builder.mul(number, stride))), _DOUBLE)

        def add(value: Any) -> None:
            builder.store(builder.fadd(builder.load(total), value), total)

        def add_middle() -> None:
            with cgutils.for_range(builder, builder.sub(high, low)) as loop:
                add(row(builder.add(low, loop.index)))

        def mean(count: Any) -> Any:
            one = builder.insert_element(zero, builder.sitofp(count, ir.DoubleType()), ir.Constant(ir.IntType(32), 0))
            same = ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES)
            return builder.fdiv(builder.load(total), builder.shuffle_vector(one, one, same))

        add_middle()
        with builder.if_else(nearest) as (then, otherwise):
            with then:
                builder.store(mean(builder.sub(high, low)), centre)
                builder.store(zero, total)
                with cgutils.for_range(builder, low) as loop:
                    small, large = row(loop.index), row(builder.add(high, loop.index))
                    middle = builder.load(centre)
                    farther = builder.fcmp_ordered(">", builder.fsub(middle, small), builder.fsub(large, middle))
                    add(builder.select(farther, large, small))
                add_middle()
                _store(builder, builder.fptrunc(mean(high), _SINGLE), out)
            with otherwise:
                _store(builder, builder.fptrunc(mean(builder.sub(high, low)), _SINGLE), out)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def sort_two(context: Any, low: Any, high: Any) -> Any:
    """Put the smaller of 16 pairs at one address, the larger at the other."""
    signature = types.void(types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values = _exchange(builder, *(_load(builder, place) for place in arguments))
        for value, place in zip(values, arguments, strict=True):
            _store(builder, value, place)
        return context.get_dummy_value()

    return signature, generate


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
        zero = ir.Constant(_DOUBLE, [ir.Constant(ir.DoubleType(), 0.0)] * LANES)
        inner, squares = (cgutils.alloca_once_value(builder, zero) for _ in range(2))
        with cgutils.for_range(builder, builder.sdiv(count, ir.Constant(_I64, LANES))) as loop:
            offset = builder.mul(loop.index, ir.Constant(_I64, 4 * LANES))
            _prefetch(builder, builder.add(builder.add(u, offset), ir.Constant(_I64, _AHEAD)))
            a, b = (builder.fpext(_load(builder, builder.add(place, offset)), _DOUBLE) for place in (u, v))
            for total, factor in ((inner, b), (squares, a)):
                # A product of two float32 is exact in float64: fused or not, the sum is the same.
                product = builder.fmul(a, factor, ("contract",))
                builder.store(builder.fadd(builder.load(total), product, ("contract",)), total)
        sums = [_fold(builder, builder.load(total), LANES) for total in (inner, squares)]
        return context.make_tuple(builder, signature.return_type, sums)

    return signature, generate
