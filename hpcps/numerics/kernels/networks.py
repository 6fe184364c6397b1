"""Sorts sixteen columns at a time in registers.

Floats are sorted by integer keys of the same order: processors compare integers faster, and one comparison of a key
shows whether its float is finite. The order of -0 and +0 does not affect a mean.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from hpcps.numerics.blocks import LANES
from hpcps.numerics.kernels.vectors import DOUBLE, I64, SINGLE, WIDTH, ZERO, load, prefetch, spread, store
from hpcps.numerics.sorting import comparators

REGISTERS = 16
"""The maximum number of rows that are sorted in registers; two sorted sets of so many rows can be merged there."""
INTERLEAVED = 4
"""Tiles that are processed in an interleaved way, because each step on a tile depends on the previous one."""
LAST: Any = 0x7FFFFFFF
"""The largest key: no float has a larger one."""
_BITS = ir.VectorType(ir.IntType(32), LANES)


def _same(value: int) -> Any:
    return ir.Constant(_BITS, [value] * LANES)


def _flip(builder: Any, bits: Any) -> Any:
    """Convert the bits of floats to keys or back: the bits of a negative float other than the sign are inverted."""
    return builder.xor(bits, builder.and_(builder.ashr(bits, _same(31)), _same(0x7FFFFFFF)))


def _floats(builder: Any, address: Any) -> Any:
    """Load keys from an address and return their values as float64."""
    return builder.fpext(builder.bitcast(_flip(builder, load(builder, address, _BITS)), SINGLE), DOUBLE)


def _choose(builder: Any, name: str, a: Any, b: Any) -> Any:
    """Return the smaller (`smin`) or larger (`smax`) keys by one instruction; compare and select may need two."""
    kind = ir.FunctionType(_BITS, [_BITS, _BITS])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.{name}.v{LANES}i32"), [a, b])


def _interleaved(builder: Any, place: Any, span: Any) -> list[Any]:
    """Return the addresses of `INTERLEAVED` tiles that are `span` bytes apart."""
    return [builder.add(place, builder.mul(span, I64(number))) for number in range(INTERLEAVED)]


def _sort(builder: Any, values: list[Any], pairs: tuple[tuple[int, int], ...]) -> None:
    for low, high in pairs:
        a, b = values[low], values[high]
        values[low], values[high] = _choose(builder, "smin", a, b), _choose(builder, "smax", a, b)


@intrinsic
def load_and_sort(
    context: Any, sources: Any, offset: Any, count: Any, place: Any, stride: Any, span: Any, worst: Any, rows: Any
) -> Any:
    """Load the columns of `rows` rows, sort them, and store their keys in tiles.

    Args:
        context: numba's typing context.
        sources: the address of the table of the rows' addresses.
        offset: the offset in bytes of the first column in the rows.
        count: the number of groups of 16 columns.
        place: the address of the first tile.
        stride: bytes from a row of a tile to the next.
        span: bytes from a tile, which holds 16 columns, to the next.
        worst: the address of the largest bit patterns so far, without signs, of 16 columns; it is updated.
        rows: the number of rows, a literal.
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
            # The largest magnitude is in the first or the last row: the key of a positive number is its bit pattern
            # without the sign, and that of a negative number is the complement.
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
    """Merge 16 columns of 32 rows of keys: the even rows are sorted, and so are the odd rows.

    The even rows begin at `place` and are `step` bytes apart; each odd row is `odd` bytes after its even row.
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
    """Sort pairs of rows one after another in `INTERLEAVED` tiles of keys: `count` pairs, given as offsets in bytes."""
    signature = types.void(*[types.int64] * 4)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        pairs, count, place, span = arguments
        table = builder.inttoptr(pairs, I64.as_pointer())
        tiles = _interleaved(builder, place, span)
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
    """Compute the mean of rows `low` to `high` (exclusive) of `INTERLEAVED` tiles of keys and write it to `out`.

    With `nearest`, compute the mean of the `high` rows nearest to that mean instead: row k < low, or row high + k if it
    is nearer.
    """
    signature = types.void(*[types.int64] * 4, types.boolean, types.int64)

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        place, span, low, high, nearest, out = arguments
        tiles = _interleaved(builder, place, span)
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
