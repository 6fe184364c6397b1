"""Inner loops that keep values of several rows in registers, where plain numba takes more than 1.3 times as long."""

from __future__ import annotations

from itertools import chain
from typing import Any

from llvmlite import ir
from llvmlite.binding import get_host_cpu_features
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hpcps.numerics.blocks import LANES
from hpcps.numerics.definitions import comparators

WIDTH = 4 * LANES
"""Bytes of sixteen columns: one register with AVX-512, two with AVX2; LLVM splits them for the processor."""
TOGETHER = 4
"""Rows that are multiplied at once: the sums of so many rows fit the registers of AVX-512."""
_WIDE_REGISTERS = bool(get_host_cpu_features().get("avx512f"))
RECTANGLE = (4, 4) if _WIDE_REGISTERS else (2, 4)
"""Rows and columns of the matrix of products whose sums are in registers at once, beside the values of these rows."""
_AT_ONCE = 8 if _WIDE_REGISTERS else 4
"""Lanes of these sums in a register; neither number changes the result."""
MIXED = 32
"""Columns of weighted sums are computed by so many."""
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
def rectangle_of_products(context: Any, first: Any, second: Any, pitch: Any, count: Any, sums: Any, stride: Any) -> Any:
    """Add the products of `RECTANGLE` rows of float64 with each other to sums of float64 per lane.

    Args:
        context: numba's typing context.
        first: the address of the rows of the matrix, one after another.
        second: the address of those of its columns.
        pitch: the bytes from a row to the next.
        count: the number of columns, a multiple of 16. Products of two values must be exact in float64.
        sums: the address of the 16 sums of the first rows of both; those of the columns are one after another.
        stride: the bytes of the sums of a row of `first`.
    """
    signature = types.void(*[types.int64] * 6)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        first, second, pitch, count, out, stride = arguments
        kind = ir.VectorType(_F64, _AT_ONCE)
        tall, wide = RECTANGLE
        rows = [builder.add(first, builder.mul(pitch, _I64(row))) for row in range(tall)]
        columns = [builder.add(second, builder.mul(pitch, _I64(row))) for row in range(wide)]
        for part in range(0, LANES, _AT_ONCE):
            places = [
                builder.add(out, builder.add(builder.mul(stride, _I64(row)), _I64(8 * (LANES * column + part))))
                for row in range(tall)
                for column in range(wide)
            ]
            totals = [cgutils.alloca_once_value(builder, _load(builder, place, kind)) for place in places]
            for total, place in zip(totals, places, strict=True):
                builder.store(_load(builder, place, kind), total)
            with cgutils.for_range(builder, builder.sdiv(count, _I64(LANES))) as loop:
                offset = builder.add(builder.mul(loop.index, _I64(8 * LANES)), _I64(8 * part))
                lefts = [_load(builder, builder.add(row, offset), kind) for row in rows]
                rights = [_load(builder, builder.add(column, offset), kind) for column in columns]
                pairs = [(left, right) for left in lefts for right in rights]
                for total, (left, right) in zip(totals, pairs, strict=True):
                    builder.store(_add_product(builder, builder.load(total), left, right), total)
            for total, place in zip(totals, places, strict=True):
                _store(builder, builder.load(total), place)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def mix_in_registers(
    context: Any, values: Any, pitch: Any, count: Any, rows: Any, weights: Any, stride: Any, out: Any
) -> Any:
    """Compute `TOGETHER` weighted sums of rows of float64; products and sums are rounded, in the order of the rows.

    Args:
        context: numba's typing context.
        values: the address of the first row.
        pitch: the bytes from a row to the next, also of the sums.
        count: the number of columns, a multiple of `MIXED`.
        rows: their number.
        weights: the address of the weights of the rows in the first sum.
        stride: the bytes to those in the next sum.
        out: the address of the sums.
    """
    signature = types.void(*[types.int64] * 7)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        values, pitch, count, rows, weights, stride, out = arguments
        kind = ir.VectorType(_F64, _AT_ONCE)
        zero = ir.Constant(kind, [ir.Constant(_F64, 0.0)] * _AT_ONCE)
        parts, step = RECTANGLE[0], 8 * _AT_ONCE
        with cgutils.for_range(builder, builder.sdiv(count, _I64(parts * _AT_ONCE))) as tile:
            offset = builder.mul(tile.index, _I64(parts * step))
            totals = [[cgutils.alloca_once_value(builder, zero) for _ in range(parts)] for _ in range(TOGETHER)]
            for total in chain.from_iterable(totals):
                builder.store(zero, total)
            with cgutils.for_range(builder, rows) as loop:
                place = builder.add(builder.add(values, offset), builder.mul(loop.index, pitch))
                xs = [_load(builder, builder.add(place, _I64(step * part)), kind) for part in range(parts)]
                for row, those in enumerate(totals):
                    at = builder.add(
                        weights, builder.add(builder.mul(stride, _I64(row)), builder.mul(loop.index, _I64(8)))
                    )
                    weight = _spread(builder, builder.load(builder.inttoptr(at, _F64.as_pointer())), kind)
                    for total, x in zip(those, xs, strict=True):
                        builder.store(builder.fadd(builder.load(total), builder.fmul(weight, x)), total)
            for row, those in enumerate(totals):
                place = builder.add(builder.add(out, offset), builder.mul(pitch, _I64(row)))
                for part, total in enumerate(those):
                    _store(builder, builder.load(total), builder.add(place, _I64(step * part)))
        return context.get_dummy_value()

    return signature, generate


def _spread(builder: Any, value: Any, kind: Any = _DOUBLE) -> Any:
    """Return a vector of equal float64."""
    none = ir.Constant(kind, ir.Undefined)
    first = builder.insert_element(none, value, _I32(0))
    return builder.shuffle_vector(first, none, ir.Constant(ir.VectorType(_I32, kind.count), [0] * kind.count))


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
