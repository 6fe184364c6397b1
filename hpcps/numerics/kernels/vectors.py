"""Intrinsics for memory at an address and for vectors of sixteen numbers.

A vector of 16 float32 is one register with AVX-512 and two with AVX2; LLVM splits it for the processor.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hpcps.numerics.blocks import LANES

WIDTH = 4 * LANES
"""Bytes of sixteen columns of a row."""

I64 = ir.IntType(64)
SINGLE, DOUBLE = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(ir.DoubleType(), LANES)

ZERO = ir.Constant(DOUBLE, [ir.Constant(ir.DoubleType(), 0.0)] * LANES)


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
    """Load the 16 numbers of 4 bytes at an address."""
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = 4
    return value


def store(builder: Any, value: Any, address: Any) -> None:
    """Store 16 numbers of 4 bytes at an address."""
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 4


def prefetch(builder: Any, address: Any, ahead: int = 2048) -> None:
    """Prefetch the memory `ahead` bytes after an address, which need not be mapped.

    The hardware prefetcher does the same, but restarts at every segment of an update.
    """
    pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    place = builder.inttoptr(builder.add(address, ir.Constant(I64, ahead)), pointer)
    builder.call(function, [place, number(0), number(3), number(1)])


def spread(builder: Any, value: Any) -> Any:
    """Return a vector of 16 equal float64."""
    first = builder.insert_element(ZERO, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, ZERO, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


def _fold(builder: Any, value: Any, width: int) -> Any:
    """Add a vector's lanes as `hpcps.numerics.blocks.segment_sums` does: lanes 8 apart, then 4, 2 and 1 apart."""
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
def stream(context: Any, source: Any, count: Any, target: Any) -> Any:
    """Write `count` groups of 16 numbers with non-temporal stores to an address, a multiple of 64.

    Ordinary stores read each cache line from memory first. Other threads see non-temporal stores in order only after a
    `fence`.
    """
    signature = types.void(types.int64, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, count, target = arguments
        hint = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        with cgutils.for_range(builder, count) as loop:
            offset = builder.mul(loop.index, I64(WIDTH))
            pointer = builder.inttoptr(builder.add(target, offset), SINGLE.as_pointer())
            stored = builder.store(load(builder, builder.add(source, offset)), pointer)
            stored.align = WIDTH
            stored.set_metadata("nontemporal", hint)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def fence(context: Any) -> Any:
    """Make earlier stores visible to other threads before later stores."""
    signature = types.void()

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def add_rows(context: Any, sources: Any, count: Any, total: Any, begin: Any, rows: Any) -> Any:
    """Add `rows` rows, a literal, of `count` float32, a multiple of 16, one after another to the float64 at `total`.

    `sources` is the address of the table of the rows' addresses. With `begin`, the sums start at +0 instead.
    """
    if not isinstance(rows, types.IntegerLiteral):
        return None
    number = rows.literal_value
    signature = types.void(types.int64, types.int64, types.int64, types.boolean, rows)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sources, count, total, begin, _ = arguments
        table = builder.inttoptr(sources, I64.as_pointer())
        places = [builder.load(builder.gep(table, [I64(row)])) for row in range(number)]
        with cgutils.for_range(builder, builder.sdiv(count, I64(LANES))) as loop:
            offset = builder.mul(loop.index, I64(WIDTH))
            place = builder.inttoptr(builder.add(total, builder.mul(offset, I64(2))), DOUBLE.as_pointer())
            before = builder.load(place)
            before.align = 8
            result = builder.select(begin, ZERO, before)
            for address in places:
                source = builder.add(address, offset)
                prefetch(builder, source)
                result = builder.fadd(result, builder.fpext(load(builder, source), DOUBLE))
            builder.store(result, place).align = 8
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def weigh_rows(
    context: Any, sources: Any, v: Any, count: Any, weights: Any, total: Any, begin: Any, sums: Any, rows: Any
) -> Any:
    """Compute the products of rows u of float32 with v and the weighted sum of the rows; every value is read once.

    All sums are float64. Products are exact: those of two float32, and those with weights, which are 0 or 1.

    Args:
        context: numba's typing context.
        sources: the address of the table of the rows' addresses.
        v: the address of v.
        count: the number of columns, a multiple of 16.
        weights: the address of the rows' weights, float64.
        total: the address of the sums to which the weighted rows are added, one after another, float64.
        begin: whether the sums start at +0 instead.
        sums: the address of the output: <u, v> and |u|^2 of each row and, last, of u = v: `[rows + 1, 2]`.
        rows: the number of rows, a literal.
    """
    if not isinstance(rows, types.IntegerLiteral):
        return None
    number = rows.literal_value
    signature = types.void(*[types.int64] * 5, types.boolean, types.int64, rows)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sources, v, count, weights, total, begin, sums, _ = arguments
        table = builder.inttoptr(sources, I64.as_pointer())
        shares = builder.inttoptr(weights, ir.DoubleType().as_pointer())
        us = [builder.load(builder.gep(table, [I64(row)])) for row in range(number)]
        factors = [spread(builder, builder.load(builder.gep(shares, [I64(row)]))) for row in range(number)]
        products = [[cgutils.alloca_once_value(builder, ZERO) for _ in range(2)] for _ in us]
        own = cgutils.alloca_once_value(builder, ZERO)
        for product in (own, *(product for pair in products for product in pair)):
            builder.store(ZERO, product)
        with cgutils.for_range(builder, builder.sdiv(count, I64(LANES))) as loop:
            offset = builder.mul(loop.index, I64(WIDTH))
            prefetch(builder, builder.add(v, offset))
            other = builder.fpext(load(builder, builder.add(v, offset)), DOUBLE)
            place = builder.inttoptr(builder.add(total, builder.mul(offset, I64(2))), DOUBLE.as_pointer())
            before = builder.load(place)
            before.align = 8
            result = builder.select(begin, ZERO, before)
            builder.store(_add_product(builder, builder.load(own), other, other), own)
            for u, factor, pair in zip(us, factors, products, strict=True):
                source = builder.add(u, offset)
                prefetch(builder, source)
                value = builder.fpext(load(builder, source), DOUBLE)
                for product, by in zip(pair, (other, value), strict=True):
                    builder.store(_add_product(builder, builder.load(product), value, by), product)
                result = _add_product(builder, result, value, factor)
            builder.store(result, place).align = 8
        found = builder.inttoptr(sums, ir.DoubleType().as_pointer())
        for position, product in enumerate([product for pair in products for product in pair] + [own, own]):
            builder.store(_fold(builder, builder.load(product), LANES), builder.gep(found, [I64(position)]))
        return context.get_dummy_value()

    return signature, generate


def _add_product(builder: Any, total: Any, a: Any, b: Any) -> Any:
    """Add an exact product, so that the result does not depend on whether the processor fuses both operations."""
    return builder.fadd(total, builder.fmul(a, b, flags=("contract",)), flags=("contract",))


@intrinsic
def products_of(context: Any, u: Any, v: Any, count: Any) -> Any:
    """Return <u, v> and |u|^2 of `count` float32, a multiple of 16, at the addresses u and v; float64, by lanes."""
    signature = types.UniTuple(types.float64, 2)(types.int64, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        u, v, count = arguments
        inner, squares = (cgutils.alloca_once_value(builder, ZERO) for _ in range(2))
        with cgutils.for_range(builder, builder.sdiv(count, ir.Constant(I64, LANES))) as loop:
            offset = builder.mul(loop.index, ir.Constant(I64, 4 * LANES))
            prefetch(builder, builder.add(u, offset))
            a, b = (builder.fpext(load(builder, builder.add(place, offset)), DOUBLE) for place in (u, v))
            for total, factor in ((inner, b), (squares, a)):
                builder.store(_add_product(builder, builder.load(total), a, factor), total)
        sums = [_fold(builder, builder.load(total), LANES) for total in (inner, squares)]
        return context.make_tuple(builder, signature.return_type, sums)

    return signature, generate
