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
    """Return the 16 numbers of 4 bytes at an address."""
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = 4
    return value


def store(builder: Any, value: Any, address: Any) -> None:
    """Put 16 numbers of 4 bytes to an address."""
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 4


def prefetch(builder: Any, address: Any, ahead: int = 2048) -> None:
    """Ask for what comes so many bytes after an address, which may be nobody's, to come into the caches.

    The processor does that itself, but begins anew with every piece of an update.
    """
    pointer, number = ir.IntType(8).as_pointer(), ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [pointer, number, number, number])
    function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    place = builder.inttoptr(builder.add(address, ir.Constant(I64, ahead)), pointer)
    builder.call(function, [place, number(0), number(3), number(1)])


def spread(builder: Any, value: Any) -> Any:
    """Return 16 times the same float64."""
    first = builder.insert_element(ZERO, value, ir.Constant(ir.IntType(32), 0))
    return builder.shuffle_vector(first, ZERO, ir.Constant(ir.VectorType(ir.IntType(32), LANES), [0] * LANES))


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
def stream(context: Any, source: Any, count: Any, target: Any) -> Any:
    """Write `count` times 16 numbers to an address, a multiple of 64, past all caches.

    Ordinary stores would have each line read from memory first. Others see these in order only after a `fence`.
    """
    signature = types.void(types.int64, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        source, count, target = arguments
        past = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        with cgutils.for_range(builder, count) as loop:
            offset = builder.mul(loop.index, I64(WIDTH))
            pointer = builder.inttoptr(builder.add(target, offset), SINGLE.as_pointer())
            stored = builder.store(load(builder, builder.add(source, offset)), pointer)
            stored.align = WIDTH
            stored.set_metadata("nontemporal", past)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def fence(context: Any) -> Any:
    """Have everything written so far seen by others before what is written from now on."""
    signature = types.void()

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def add_rows(context: Any, sources: Any, count: Any, total: Any, begin: Any, rows: Any) -> Any:
    """Add `rows` rows, a literal, of `count` float32, a multiple of 16, one after another to float64 at an address.

    `sources` is the address of the rows' addresses. With `begin`, the sum starts at +0 instead.
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
    """Hold `rows` rows, a literal, of float32 against v, and add them up meanwhile: every value is met once.

    All sums are float64. Weights are 0 or 1: then they change no bit of a sum, as a product of two float32 does not.

    Args:
        context: numba's.
        sources: the address of the rows' addresses.
        v: the address of v.
        count: how many columns, a multiple of 16.
        weights: the address of the rows' weights in the total, float64.
        total: the address of what the rows are added to, one after another, float64.
        begin: whether it does not count what is there.
        sums: the address of where <u, v> and |u|^2 of each row go, and at last of v itself: `[rows + 1, 2]`.
        rows: how many there are.
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
    """Add a product that is exact, so that it is the same whether a processor does both at once or not."""
    return builder.fadd(total, builder.fmul(a, b, flags=("contract",)), flags=("contract",))


@intrinsic
def products_of(context: Any, u: Any, v: Any, count: Any) -> Any:
    """Return <u, v> and |u|^2 of `count` float32 at two addresses, a multiple of 16, in float64, by lanes."""
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
