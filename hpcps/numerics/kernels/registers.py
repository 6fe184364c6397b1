"""Inner loops that keep values of several rows in registers, where plain numba takes more than 1.3 times as long."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hpcps.numerics.blocks import LANES, SEGMENT
from hpcps.numerics.sorting import comparators

WIDTH = 4 * LANES
"""Bytes of sixteen columns: one register with AVX-512, two with AVX2; LLVM splits them for the processor."""
TOGETHER = 4
"""Rows that are multiplied at once: the sums of so many rows fit the registers of AVX-512."""
_AHEAD = 2048
"""Prefetch distance in bytes."""
_I32, _I64 = ir.IntType(32), ir.IntType(64)
_F64 = ir.DoubleType()
_SINGLE, _DOUBLE = ir.VectorType(ir.FloatType(), LANES), ir.VectorType(_F64, LANES)
_ZERO = ir.Constant(_DOUBLE, [ir.Constant(_F64, 0.0)] * LANES)


def _load(builder: Any, address: Any, kind: Any = _SINGLE) -> Any:
    value = builder.load(builder.inttoptr(address, kind.as_pointer()))
    value.align = 4
    return value


def _store(builder: Any, value: Any, address: Any) -> None:
    builder.store(value, builder.inttoptr(address, value.type.as_pointer())).align = 4


def _load_ahead(builder: Any, address: Any) -> Any:
    """Load sixteen float32 and prefetch later ones, which need not be mapped: hardware does so for few rows at once."""
    pointer = ir.IntType(8).as_pointer()
    kind = ir.FunctionType(ir.VoidType(), [pointer, _I32, _I32, _I32])
    prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
    later = builder.inttoptr(builder.add(address, _I64(_AHEAD)), pointer)
    builder.call(prefetch, [later, _I32(0), _I32(3), _I32(1)])
    return _load(builder, address)


@intrinsic
def sort_in_registers(
    context: Any, places: Any, step: Any, count: Any, tile: Any, stride: Any, dirty: Any, rows: Any
) -> Any:
    """Load the columns of some rows of float32, sort each of them, and store them in rows of a tile.

    Args:
        context: numba's typing context.
        places: the address of the table of the rows' addresses.
        step: from a row's address to the next one's in this table, in addresses.
        count: the number of columns, a multiple of 16.
        tile: the address of the first row for the result.
        stride: bytes from a row of the tile to the next.
        dirty: the address of 16 float32, which become NaN if a value is not finite.
        rows: the number of rows, a literal.
    """
    if not isinstance(rows, types.IntegerLiteral):
        return None
    number = rows.literal_value
    signature = types.void(*[types.int64] * 6, rows)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        places, step, count, tile, stride, dirty, _ = arguments

        table = builder.inttoptr(places, _I64.as_pointer())
        starts = [builder.load(builder.gep(table, [builder.mul(step, _I64(row))])) for row in range(number)]
        found = cgutils.alloca_once_value(builder, _load(builder, dirty))
        with cgutils.for_range(builder, builder.sdiv(count, _I64(LANES))) as loop:
            offset = builder.mul(loop.index, _I64(WIDTH))
            values = []
            for start in starts:
                source = builder.add(start, offset)
                values.append(_load_ahead(builder, source))
                builder.store(builder.fadd(builder.load(found), builder.fsub(values[-1], values[-1])), found)
            for low, high in comparators(number):
                a, b = values[low], values[high]
                smaller = builder.fcmp_ordered("<", a, b)
                values[low], values[high] = builder.select(smaller, a, b), builder.select(smaller, b, a)
            for row, value in enumerate(values):
                _store(builder, value, builder.add(builder.add(tile, offset), builder.mul(stride, _I64(row))))
        _store(builder, builder.load(found), dirty)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def weigh_rows(context: Any, places: Any, v: Any, count: Any, weights: Any, total: Any, sums: Any) -> Any:
    """Compute the products of `TOGETHER` rows u of float32 with v and add the weighted rows to the sums at `total`.

    All sums are float64. Products are exact: those of two float32, and those with weights, which are 0 or 1.

    Args:
        context: numba's typing context.
        places: the address of the table of the rows' addresses.
        v: the address of v.
        count: the number of columns, a multiple of 16.
        weights: the address of the rows' weights, float64.
        total: the address of the sums to which the weighted rows are added, one after another, float64.
        sums: the address of the output: <u, v> and |u|^2 of each row and, last, of u = v: `[TOGETHER + 1, 2]`.
    """
    signature = types.void(*[types.int64] * 6)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        places, v, count, weights, total, sums = arguments
        table, shares = (builder.inttoptr(places, _I64.as_pointer()), builder.inttoptr(weights, _F64.as_pointer()))
        us = [builder.load(builder.gep(table, [_I64(row)])) for row in range(TOGETHER)]
        factors = [_spread(builder, builder.load(builder.gep(shares, [_I64(row)]))) for row in range(TOGETHER)]
        products = [cgutils.alloca_once_value(builder, _ZERO) for _ in range(2 * TOGETHER + 1)]
        for product in products:
            builder.store(_ZERO, product)
        with cgutils.for_range(builder, builder.sdiv(count, _I64(LANES))) as loop:
            offset = builder.mul(loop.index, _I64(WIDTH))
            other = builder.fpext(_load_ahead(builder, builder.add(v, offset)), _DOUBLE)
            place = builder.add(total, builder.mul(offset, _I64(2)))
            result = _load(builder, place, _DOUBLE)
            values = [builder.fpext(_load_ahead(builder, builder.add(u, offset)), _DOUBLE) for u in us]
            pairs = [(value, by) for value in values for by in (other, value)] + [(other, other)]
            for product, (a, b) in zip(products, pairs, strict=True):
                builder.store(_add_product(builder, builder.load(product), a, b), product)
            for value, factor in zip(values, factors, strict=True):
                result = _add_product(builder, result, value, factor)
            _store(builder, result, place)
        found = builder.inttoptr(sums, _F64.as_pointer())
        for position, product in enumerate((*products, products[-1])):
            builder.store(_fold(builder, builder.load(product)), builder.gep(found, [_I64(position)]))
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def square_of_products(context: Any, first: Any, second: Any, count: Any, out: Any, stride: Any) -> Any:
    """Add the products of two rows of float64 with two others to a matrix of float64.

    Args:
        context: numba's typing context.
        first: the address of two rows, one after another, of `SEGMENT` float64 each.
        second: the address of the two others.
        count: the number of columns, a multiple of 16. Products of two values must be exact in float64.
        out: the address of the matrix's element for the first rows of both.
        stride: the bytes of a row of the matrix.
    """
    signature = types.void(*[types.int64] * 5)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first, second, count, out, stride = arguments
        # The sums of half the lanes fit the registers of AVX2.
        kind = ir.VectorType(_F64, LANES // 2)
        zero, halves = ir.Constant(kind, [ir.Constant(_F64, 0.0)] * (LANES // 2)), []
        for half in range(2):
            sums = [cgutils.alloca_once_value(builder, zero) for _ in range(4)]
            for total in sums:
                builder.store(zero, total)
            with cgutils.for_range(builder, builder.sdiv(count, _I64(LANES))) as loop:
                offset = builder.add(builder.mul(loop.index, _I64(8 * LANES)), _I64(4 * LANES * half))
                rows = [builder.add(table, _I64(8 * SEGMENT * row)) for table in (first, second) for row in range(2)]
                a, b, c, d = (_load(builder, builder.add(row, offset), kind) for row in rows)
                for total, (left, right) in zip(sums, ((a, c), (a, d), (b, c), (b, d)), strict=True):
                    builder.store(_add_product(builder, builder.load(total), left, right), total)
            halves.append([builder.load(total) for total in sums])
        for position, (low, high) in enumerate(zip(*halves, strict=True)):
            found = _fold(builder, builder.fadd(low, high))
            at = builder.add(out, builder.add(builder.mul(stride, _I64(position // 2)), _I64(8 * (position % 2))))
            place = builder.inttoptr(at, _F64.as_pointer())
            builder.store(builder.fadd(builder.load(place), found), place)
        return context.get_dummy_value()

    return signature, generate


def _spread(builder: Any, value: Any) -> Any:
    """Return a vector of 16 equal float64."""
    first = builder.insert_element(_ZERO, value, _I32(0))
    return builder.shuffle_vector(first, _ZERO, ir.Constant(ir.VectorType(_I32, LANES), [0] * LANES))


def _add_product(builder: Any, total: Any, a: Any, b: Any) -> Any:
    """Add an exact product, so that the result does not depend on whether the processor fuses both operations."""
    return builder.fadd(total, builder.fmul(a, b, flags=("contract",)), flags=("contract",))


def _fold(builder: Any, value: Any) -> Any:
    """Add a vector's lanes as `hpcps.numerics.blocks.segment_sums` does: lanes half of them apart, and so on."""
    lanes = [builder.extract_element(value, _I32(lane)) for lane in range(value.type.count)]
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [builder.fadd(low, high) for low, high in zip(lanes[:half], lanes[half:], strict=True)]
    return lanes[0]
