"""The operations on updates with numpy, which define the results; `operations` describes each.

A sorting network, which compares whole rows, sorts the values of each coordinate.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics.blocks import (
    SEGMENT,
    STRETCH,
    TILE,
    Accepts,
    Float64,
    Products,
    Tile,
    mean,
    segment_sums,
    tiles,
    weighted_row,
)
from hpcps.numerics.layout import Mask, Vector
from hpcps.numerics.updates import NotFiniteError, Updates


@lru_cache(maxsize=256)
def comparators(n: int, below: int | None = None) -> tuple[tuple[int, int], ...]:
    """Return the comparators (low, high) of a network that sorts n rows.

    Batcher's merge exchange sort, which takes any n (Knuth, The Art of Computer Programming, volume 3,
    algorithm 5.2.2M). Its steps p = …, 4, 2, 1 leave the rows p apart sorted.

    Args:
        n: the number of rows.
        below: a power of two; steps p >= `below` are left out, because rows `below` apart are sorted already.
    """
    pairs = []
    top = 1 << max(n - 1, 0).bit_length() >> 1
    p = top if below is None else min(top, below >> 1)
    while p:
        q, r, distance = top, 0, p
        while distance:
            pairs += [(i, i + distance) for i in range(n - distance) if i & p == r]
            distance, q, r = q - p, q >> 1, p
        p >>= 1
    return tuple(pairs)


def needed(pairs: tuple[tuple[int, int], ...], ranks: range) -> tuple[tuple[int, int], ...]:
    """Return the comparators that affect the values at these ranks."""
    wanted, kept = set(ranks), []
    for low, high in reversed(pairs):
        if low in wanted or high in wanted:
            wanted |= {low, high}
            kept.append((low, high))
    return tuple(reversed(kept))


def ascending(values: Vector) -> list[Vector]:
    """Return the rows of `[n, t]` with every column sorted, smallest first; the argument is not changed.

    This is much faster than `np.sort(axis=0)`, which gathers and sorts one column at a time. Values are finite; the
    signs of zeros may change.
    """
    rows = list(values.copy())
    spare = np.empty(values.shape[1], dtype=values.dtype)
    for low, high in comparators(len(rows)):
        smaller, larger = rows[low], rows[high]
        np.minimum(smaller, larger, out=spare)
        np.maximum(smaller, larger, out=larger)
        rows[low], spare = spare, smaller
    return rows


Values = TypeVar("Values", bound=NDArray[Any])


class Writer:
    """Writes a result range by range: rounds it to float32, and adds it to the base if there is one."""

    def __init__(self, updates: Updates) -> None:
        """Write to the destination of the updates."""
        to = updates.to
        self._base = to.base
        self._out: Vector = np.empty(updates.layout.size, np.float32) if to.out is None else to.out
        self._finite = True

    def put(self, columns: slice, values: NDArray[Any]) -> None:
        """Write the values `[t]` of a range of coordinates."""
        target = self._out[columns]
        with np.errstate(over="ignore", invalid="ignore"):
            if self._base is None:
                target[:] = values
                return
            np.add(self._base[columns], values.astype(np.float32), out=target)
        self._finite = self._finite and bool(np.isfinite(target).all())

    @property
    def written(self) -> tuple[Vector, bool]:
        """The result after every range was written, and whether it is finite; without a base, it is."""
        return self._out, self._finite


def require_finite(values: Values, updates: Updates) -> Values:
    """Return the values, which were computed from updates.

    Raises:
        NotFiniteError: the values are not finite, and the updates are not known to be.
    """
    if not updates.finite and not np.isfinite(values).all():
        raise NotFiniteError
    return values


def put(updates: Updates, values: Vector) -> tuple[Vector, bool]:
    """Write finite values `[d]`, or a single one for all coordinates."""
    writer = Writer(updates)
    writer.put(slice(0, updates.layout.size), np.broadcast_to(values, updates.layout.size))
    return writer.written


def screen(updates: Updates) -> Mask:
    refused = np.zeros(updates.sent.shape, dtype=np.bool_)
    for tile in tiles(updates.layout, len(updates)):
        good = np.isfinite(updates.tile(tile.columns))
        if not good.all():
            refused[:, tile.blocks] |= tile.any(~good)
    return refused


def products(updates: Updates, v: Vector | None) -> Products:
    n, layout = len(updates), updates.layout
    inner, squares = np.zeros((n, len(layout.blocks))), np.zeros((n, len(layout.blocks)))
    own = np.zeros(len(layout.blocks))
    step = max(1, TILE // (max(n, 1) * SEGMENT)) * SEGMENT
    for index, block in enumerate(layout.blocks):
        for start in range(block.offset, block.stop, step):
            columns = slice(start, min(start + step, block.stop))
            theirs = updates.tile(columns).astype(np.float64)
            mine = np.zeros((1, theirs.shape[1])) if v is None else v[columns].astype(np.float64)[None, :]
            inner_sums, squares_sums, limit = (segment_sums(x) for x in (theirs * mine, theirs * theirs, mine * mine))
            for segment in range(limit.shape[1]):
                inner[:, index] += inner_sums[:, segment]
                squares[:, index] += squares_sums[:, segment]
                own[index] += limit[0, segment]
    return Products(inner, squares, own)


def gram(updates: Updates) -> Float64:
    m, layout = len(updates), updates.layout
    totals = np.zeros((len(layout.blocks), m, m))
    for index, block in enumerate(layout.blocks):
        for start in range(block.offset, block.stop, STRETCH):
            sums = np.zeros((m, m))
            for begin in range(start, min(start + STRETCH, block.stop), SEGMENT):
                rows = updates.tile(slice(begin, min(begin + SEGMENT, block.stop))).astype(np.float64)
                for row in range(m):
                    sums[row, row:] += segment_sums(rows[row:] * rows[row])[:, 0]
            totals[index] += sums
    return totals + np.triu(totals, 1).transpose(0, 2, 1)


def average(updates: Updates) -> tuple[Vector, bool]:
    writer = Writer(updates)
    for tile in tiles(updates.layout, len(updates)):
        # A sum of finite float32 values cannot overflow float64: it is finite if and only if all of them are.
        values = require_finite(mean(updates.tile(tile.columns), len(updates)), updates)
        writer.put(tile.columns, values)
    return writer.written


def mean_of_ranks(updates: Updates, low: int, high: int) -> tuple[Vector, bool]:
    writer = Writer(updates)
    for tile, rows in _sorted(updates):
        writer.put(tile.columns, mean(rows[low:high], high - low))
    return writer.written


def mean_around_trimmed_mean(updates: Updates, b: int) -> tuple[Vector, bool]:
    # The nearest values are contiguous in sorted order: a window [k, n - b + k). Moving the window up by one replaces
    # value k by value n - b + k. This brings the window nearer as long as value k is the farther of the two, and once
    # it is not, it never is again. So each of these b pairs is decided independently, and the values between them are
    # in every window.
    writer, keep = Writer(updates), len(updates) - b
    for tile, rows in _sorted(updates):
        centre = mean(rows[b:keep], keep - b)
        pairs = zip(rows[:b], rows[keep:], strict=True)
        ends = [np.where(centre - low > high - centre, high, low) for low, high in pairs]
        writer.put(tile.columns, mean(rows[b:keep] + ends, keep))
    return writer.written


def mean_around_median(updates: Updates, middle: tuple[int, int], keep: int) -> tuple[Vector, bool]:
    # The nearest values are contiguous in sorted order. A window that moves up by one replaces its smallest value by
    # the next larger one, which brings it nearer as long as the smallest is the farther of the two.
    writer, n = Writer(updates), len(updates)
    for tile, rows in _sorted(updates):
        centre = mean(rows[slice(*middle)], middle[1] - middle[0])
        total = np.zeros(len(centre))
        moved = [centre - rows[k] > rows[k + keep] - centre for k in range(n - keep)]
        # Value k is in the window iff the window did not move past it, and has moved far enough to reach it.
        for k, row in enumerate(rows):
            inside = np.ones(len(centre), np.bool_)
            if k < n - keep:
                inside &= ~moved[k]
            if k >= keep:
                inside &= moved[k - keep]
            total += np.where(inside, row, 0.0)
        total /= keep
        writer.put(tile.columns, total)
    return writer.written


SLIVER = 1e-9
"""The share of the sum of weights up to which the difference of two cumulative weights is one of rounding."""


def weighted_median(updates: Updates, lower: bool) -> tuple[Vector, bool]:
    writer = Writer(updates)
    for tile, values, weights in _by_value(updates):
        writer.put(tile.columns, _median(values, weights, lower))
    return writer.written


def mean_of_middle(updates: Updates, trim: float) -> tuple[Vector, bool]:
    writer, n = Writer(updates), len(updates)
    for tile, values, weights in _by_value(updates):
        writer.put(tile.columns, _between(values, weights, trim * n, n - trim * n))
    return writer.written


def mean_of_nearest(updates: Updates, drop: float, middle: str) -> tuple[Vector, bool]:
    writer, n = Writer(updates), len(updates)
    for tile, values, weights in _by_value(updates):
        if middle == "trimmed":
            centre = _between(values, weights, drop * n, n - drop * n)
        else:
            centre = _median(values, weights, middle == "lower")
        distances = [np.abs(value - centre) for value in values]
        _sort(distances, values, weights)
        writer.put(tile.columns, _between(values, weights, 0.0, n - drop * n))
    return writer.written


Rows = list[Float64]
"""n rows `[t]`, which are sorted in place."""


def _by_value(updates: Updates) -> Iterator[tuple[Tile, Rows, Rows]]:
    """Return the tiles of the updates, the values of each in ascending order, and their weights."""
    given = updates.relative_weights
    for tile in tiles(updates.layout, len(updates)):
        values = list(require_finite(updates.tile(tile.columns), updates).astype(np.float64))
        weights = [np.full(len(values[0]), weight) for weight in given]
        _sort(values, values, weights)
        yield tile, values, weights


def _sort(keys: Rows, values: Rows, weights: Rows) -> None:
    """Sort the values of each column, and their weights, by their keys, and those with equal keys by themselves."""
    for low, high in comparators(len(keys)):
        swap = keys[low] > keys[high]
        if keys is not values:
            swap |= (keys[low] == keys[high]) & (values[low] > values[high])
        chosen = -swap.astype(np.int64)  # all bits, or none: np.where takes several times as long
        for rows in (keys, weights) if keys is values else (keys, values, weights):
            first, second = rows[low].view(np.int64), rows[high].view(np.int64)
            differing = (first ^ second) & chosen
            first ^= differing
            second ^= differing


def _median(values: Rows, weights: Rows, lower: bool) -> Float64:
    """Return the weighted median of ascending values, whose weights have the sum n."""
    half, passed = len(values) / 2, np.zeros(len(values[0]))
    first, last = values[0].copy(), values[0].copy()
    for weight, following in zip(weights[:-1], values[1:], strict=True):
        passed += weight
        np.copyto(first, following, where=passed < half * (1 - SLIVER))
        np.copyto(last, following, where=passed <= half * (1 + SLIVER))
    return first if lower else mean([first, last], 2)


def _between(values: Rows, weights: Rows, low: float, high: float) -> Float64:
    """Return the weighted mean of the values that the cumulative weights `low` to `high` belong to."""
    total, kept, before = (np.zeros(len(values[0])) for _ in range(3))
    for value, weight in zip(values, weights, strict=True):
        after = before + weight
        part = np.minimum(after, high) - np.maximum(before, low)
        part[part <= SLIVER * len(values)] = 0.0  # else rounding lets a part of a huge value in
        total += part * value
        kept += part
        before = after
    total /= kept
    return total


def vote(updates: Updates, step: float) -> tuple[Vector, bool]:
    writer = Writer(updates)
    for tile in tiles(updates.layout, len(updates)):
        votes = np.sign(require_finite(updates.tile(tile.columns), updates)).sum(axis=0)
        writer.put(tile.columns, np.sign(votes) * step)
    return writer.written


def mean_by_agreement(updates: Updates, threshold: float) -> tuple[Vector, bool]:
    writer = Writer(updates)
    for tile in tiles(updates.layout, len(updates)):
        rows = require_finite(updates.tile(tile.columns), updates)
        agree = np.abs(np.sign(rows).sum(axis=0)) >= threshold
        writer.put(tile.columns, np.where(agree, 1.0, -1.0) * mean(rows, len(updates)))
    return writer.written


def weighted_sum(updates: Updates, weights: Float64) -> tuple[Vector, bool]:
    writer = Writer(updates)
    for tile in tiles(updates.layout, len(updates)):
        writer.put(tile.columns, weighted_row(updates.tile(tile.columns), tile.spread(weights)))
    return writer.written


def mean_of_accepted(updates: Updates, v: Vector, accepts: Accepts, zeros: bool) -> tuple[Vector, bool, Mask]:
    with np.errstate(invalid="ignore", over="ignore"):  # v may not be finite after the model has diverged
        accepted = accepts(products(updates, v))
    writer, weights = Writer(updates), accepted.astype(np.float64)
    counts = np.maximum(weights.sum(axis=0), 1.0)
    for tile in tiles(updates.layout, len(updates)):
        total = np.zeros(tile.columns.stop - tile.columns.start)
        for weight, update in zip(tile.spread(weights), updates.tile(tile.columns), strict=True):
            total += weight * update
        writer.put(tile.columns, total / tile.spread(counts))
    return *writer.written, accepted


def scale(update: Updates, factors: Float64) -> Vector:
    writer = Writer(update)
    for tile in tiles(update.layout, 1):
        writer.put(tile.columns, tile.spread(factors) * update.tile(tile.columns)[0])
    return writer.written[0]


def _sorted(updates: Updates) -> Iterator[tuple[Tile, list[Vector]]]:
    """Return the tiles of the updates, and the rows of each with every column sorted, smallest first."""
    for tile in tiles(updates.layout, len(updates)):
        yield tile, ascending(require_finite(updates.tile(tile.columns), updates))
