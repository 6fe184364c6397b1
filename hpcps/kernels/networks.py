"""Sixteen columns at a time, sorted in a processor's registers.

Floats are sorted as integers of the same order, their keys: processors compare integers faster, and a key tells at
once whether its float is finite. Which of two zeros comes first, -0 or +0, leaves no trace in a mean.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hpcps.blocks import LANES
from hpcps.kernels.vectors import DOUBLE, I64, SINGLE, WIDTH, ZERO, load, prefetch, spread, store
from hpcps.rules.sorting import comparators

REGISTERS = 16
"""The most rows that are sorted in registers as they are loaded; twice as many, sorted by halves, can be merged."""
ABREAST = 4
"""Tiles that are worked on at once where each step of one waits for the one before."""
LAST: Any = 0x7FFFFFFF
"""A key that no float has a larger one than."""
_BITS = ir.VectorType(ir.IntType(32), LANES)


def _same(value: int) -> Any:
    return ir.Constant(_BITS, [value] * LANES)


def _flip(builder: Any, bits: Any) -> Any:
    """Turn floats' bits into keys, or back: those of negative numbers ascend the other way."""
    return builder.xor(bits, builder.and_(builder.ashr(bits, _same(31)), _same(0x7FFFFFFF)))


def _floats(builder: Any, address: Any) -> Any:
    """Return the float64 whose keys are at an address."""
    return builder.fpext(builder.bitcast(_flip(builder, load(builder, address, _BITS)), SINGLE), DOUBLE)


def _choose(builder: Any, name: str, a: Any, b: Any) -> Any:
    """Return the smaller (`smin`) or the larger (`smax`) keys: an instruction, which compare and select may not be."""
    kind = ir.FunctionType(_BITS, [_BITS, _BITS])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}i32"), [a, b])


def _abreast(builder: Any, place: Any, span: Any) -> list[Any]:
    """Return the addresses of tiles that lie `span` bytes apart."""
    return [builder.add(place, builder.mul(span, I64(number))) for number in range(ABREAST)]


def _sort(builder: Any, values: list[Any], pairs: tuple[tuple[int, int], ...]) -> None:
    for low, high in pairs:
        a, b = values[low], values[high]
        values[low], values[high] = _choose(builder, "smin", a, b), _choose(builder, "smax", a, b)


@intrinsic
def take_and_sort(
    context: Any, sources: Any, offset: Any, count: Any, place: Any, stride: Any, span: Any, worst: Any, rows: Any
) -> Any:
    """Sort the columns of `rows` rows, a literal, on their way from where they lie to a tile of their keys.

    Args:
        context: numba's.
        sources: the address of the rows' addresses.
        offset: how many bytes after those to begin.
        count: how many times 16 columns to take.
        place: the address of the tile.
        stride: bytes from a row of it to the next.
        span: bytes from 16 columns of it to the next 16.
        worst: the address of the largest bit patterns so far, without signs, of 16 columns; brought up to date.
        rows: how many rows there are.
    """
    if not isinstance(rows, types.IntegerLiteral):
        return None
    number = rows.literal_value
    signature = types.void(*[types.int64] * 7, rows)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        sources, offset, count, place, stride, span, worst, _ = arguments
        table = builder.inttoptr(sources, I64.as_pointer())
        begins = [builder.add(builder.load(builder.gep(table, [I64(row)])), offset) for row in range(number)]
        found = cgutils.alloca_once_value(builder, load(builder, worst, _BITS))
        with cgutils.for_range(builder, count) as loop:
            done = builder.mul(loop.index, I64(WIDTH))
            values = []
            for begin in begins:
                source = builder.add(begin, done)
                prefetch(builder, source)
                values.append(_flip(builder, load(builder, source, _BITS)))
            _sort(builder, values, comparators(number))
            # The largest magnitude is at one end: a positive number's key is its pattern, a negative one's key its
            # pattern's complement.
            for pattern in (values[-1], builder.not_(values[0])):
                builder.store(_choose(builder, "smax", builder.load(found), pattern), found)
            target = builder.add(place, builder.mul(loop.index, span))
            for row, value in enumerate(values):
                store(builder, value, builder.add(target, builder.mul(stride, I64(row))))
        store(builder, builder.load(found), worst)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def merge_rows(context: Any, place: Any, step: Any, odd: Any) -> Any:
    """Sort 16 columns of 32 rows of keys, of which the even ones are sorted, and the odd ones.

    The even rows are `step` bytes apart, from an address on, and the odd ones `odd` bytes after them.
    """
    signature = types.void(types.int64, types.int64, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place, step, odd = arguments
        evens = [builder.add(place, builder.mul(step, I64(row))) for row in range(REGISTERS)]
        places = [address for even in evens for address in (even, builder.add(even, odd))]
        values = [load(builder, address, _BITS) for address in places]
        _sort(builder, values, comparators(2 * REGISTERS, 2))
        for value, address in zip(values, places, strict=True):
            store(builder, value, address)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def sort_pairs(context: Any, pairs: Any, count: Any, place: Any, span: Any) -> Any:
    """Sort pairs of rows, one after another: `count` pairs of offsets in bytes, in each of `ABREAST` tiles of keys."""
    signature = types.void(*[types.int64] * 4)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pairs, count, place, span = arguments
        table = builder.inttoptr(pairs, I64.as_pointer())
        tiles = _abreast(builder, place, span)
        with cgutils.for_range(builder, count) as loop:
            first = builder.mul(loop.index, I64(2))
            offsets = [builder.load(builder.gep(table, [builder.add(first, I64(k))])) for k in range(2)]
            for tile in tiles:
                places = [builder.add(tile, offset) for offset in offsets]
                values = [load(builder, address, _BITS) for address in places]
                _sort(builder, values, ((0, 1),))
                for value, address in zip(values, places, strict=True):
                    store(builder, value, address)
        return context.get_dummy_value()

    return signature, generate


@intrinsic
def mean_of_rows(context: Any, place: Any, span: Any, low: Any, high: Any, nearest: Any, out: Any) -> Any:
    """Take the mean of the rows `low` to `high` (exclusive) of `ABREAST` tiles of keys, to an address.

    With `nearest`, that of the `high` rows nearest to this mean: in place of row k < low, row high + k if it is nearer.
    """
    signature = types.void(*[types.int64] * 4, types.boolean, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place, span, low, high, nearest, out = arguments
        tiles = _abreast(builder, place, span)
        totals, centres = ([cgutils.alloca_once_value(builder, ZERO) for _ in tiles] for _ in range(2))
        for total in totals:
            builder.store(ZERO, total)

        def add(total: Any, value: Any) -> None:
            builder.store(builder.fadd(builder.load(total), value), total)

        def divisor(count: Any) -> Any:
            return spread(builder, builder.sitofp(count, ir.DoubleType()))

        def row(number: Any) -> Any:
            return builder.mul(number, I64(WIDTH))

        with cgutils.for_range(builder, builder.sub(high, low)) as loop:
            offset = row(builder.add(low, loop.index))
            for tile, total in zip(tiles, totals, strict=True):
                add(total, _floats(builder, builder.add(tile, offset)))
        count = cgutils.alloca_once_value(builder, builder.sub(high, low))
        builder.store(builder.sub(high, low), count)
        with builder.if_then(nearest):
            for total, centre in zip(totals, centres, strict=True):
                builder.store(builder.fdiv(builder.load(total), divisor(builder.load(count))), centre)
            with cgutils.for_range(builder, low) as loop:
                offsets = row(loop.index), row(builder.add(high, loop.index))
                for tile, total, centre in zip(tiles, totals, centres, strict=True):
                    small, large = (_floats(builder, builder.add(tile, offset)) for offset in offsets)
                    middle = builder.load(centre)
                    farther = builder.fcmp_ordered(">", builder.fsub(middle, small), builder.fsub(large, middle))
                    add(total, builder.select(farther, large, small))
            builder.store(high, count)
        for number, total in enumerate(totals):
            mean = builder.fdiv(builder.load(total), divisor(builder.load(count)))
            store(builder, builder.fptrunc(mean, SINGLE), builder.add(out, I64(WIDTH * number)))
        return context.get_dummy_value()

    return signature, generate
