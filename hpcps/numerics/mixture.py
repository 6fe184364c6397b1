"""Rows that are weighted sums of updates, computed only where they are read; and rules applied to ranges of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, wraps
from typing import Concatenate, ParamSpec

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics.blocks import SEGMENT, Float64, tiles, weighted_row
from hpcps.numerics.kernels import enough
from hpcps.numerics.layout import Mask, Vector
from hpcps.numerics.updates import Combined, Destination, Updates

P = ParamSpec("P")
Combine = Callable[[Updates, slice], Combined]
"""Combines a part of some updates: a range of coordinates of them."""

PART = 1 << 22
"""Elements of a part, over all rows: few enough for a processor's cache, and enough for several threads."""


class Mixture(Updates):
    """m rows, each a weighted sum of n updates.

    Inner products and weighted sums of the rows follow from those of the updates, so `gram` and `weighted_sum` compute
    no row. Other operations compute the rows part by part (`part_by_part`). `payloads` computes all rows; no built-in
    rule uses it.

    Products and sums of a row are float64, in the order of the updates; they are rounded to float32, and limited to the
    largest float32.
    """

    lazy = True

    def __init__(self, updates: Updates, weights: Float64, gram: Float64 | None = None) -> None:
        """Mix updates.

        Args:
            updates: the n updates, all finite; their destination is that of the rows.
            weights: the weight of each update in each row: `[B, m, n]`, or `[1, m, n]` if all blocks have the same.
            gram: the inner products of the updates (see `operations.gram`), if they are known.
        """
        layout, m = updates.layout, weights.shape[1]
        self.layout = layout
        self.updates = updates
        self.mixing = weights
        # Pre-aggregators that take weights keep the number of rows, and each row the weight of its update.
        self.weights = updates.weights if m == len(updates) else None
        self.products = gram
        self.sent = self.used = np.ones((m, len(layout.blocks)), np.bool_)
        self.finite = True
        self.to = updates.to

    def __len__(self) -> int:
        return len(self.sent)

    @property
    def on_host(self) -> bool:
        return self.updates.on_host

    def empty(self, *shape: int) -> Vector:
        return self.updates.empty(*shape)

    def onto(self, to: Destination) -> Mixture:
        return Mixture(self.updates.onto(to), self.mixing, self.products)

    @cached_property
    def payloads(self) -> tuple[Vector, ...]:  # type: ignore[override]
        """All rows: `[d]` each."""
        return tuple(self.tile(slice(0, self.layout.size)))

    def select(self, rows: NDArray[np.intp]) -> Mixture:
        return Mixture(self.updates, self.mixing[:, rows], self.products)

    def entered(self, accepted: Mask) -> Mask:
        """Return the (update, block) pairs `[n, B]` that have a weight in an accepted row, of `[m, B]`."""
        found: Mask = (accepted.T[:, :, None] & (self.mixing != 0)).any(axis=1).T
        return found

    def tile(self, columns: slice, out: Vector | None = None) -> Vector:
        start, stop = columns.start, columns.stop
        values = self.empty(len(self), stop - start) if out is None else out
        if not self.on_host:
            from hpcps.numerics import tensors

            tensors.mix(self.updates, self.mixing, columns, values)
            return values
        if enough((stop - start) * len(self.updates)) and values.strides[1] == values.itemsize:
            from hpcps.numerics.kernels import mixing

            mixing.mix(self.updates, self.mixing, columns, values)
            return values
        layout = self.layout.restrict(start, stop)
        first = self.layout.first_in(start) if stop > start else 0
        blocks = np.flatnonzero(self.layout.sizes[first:])[: len(layout.blocks)] + first
        for tile in tiles(layout, len(self.updates)):
            part = slice(start + tile.columns.start, start + tile.columns.stop)
            rows = self.updates.tile(part)
            for row, weights in zip(values[:, tile.columns], self._by_block(blocks), strict=True):
                row[:] = weighted_row(rows, tile.spread(weights))
        return values

    def columns(self, indices: NDArray[np.int64]) -> Vector:
        rows = self.updates.columns(indices)
        blocks = np.searchsorted(self.layout.offsets, indices, side="right") - 1
        found = [weighted_row(rows, weights) for weights in self._by_block(blocks)]
        return np.array(found, np.float32).reshape(len(self), len(indices))

    def _by_block(self, blocks: NDArray[np.intp]) -> Float64:
        """Return the weights of the updates in some blocks: `[m, n, len(blocks)]`."""
        which = blocks if len(self.mixing) > 1 else np.zeros_like(blocks)
        return self.mixing[which].transpose(1, 2, 0)


def mixed_products(weights: Float64, products: Float64) -> Float64:
    """Return the inner products of weighted sums of rows, from those of the rows.

    Rows with equal weights have equal products. The sums are in the order of the rows.

    Args:
        weights: the weight of each row in each sum: `[…, m, n]`.
        products: the inner products of all pairs of rows: `[…, n, n]`.
    """
    half = combined(products, np.swapaxes(weights, -1, -2))
    whole = combined(weights, half)
    return (whole + np.swapaxes(whole, -1, -2)) / 2


def combined(left: Float64, right: Float64) -> Float64:
    """Return the matrix products of `[…, a, n]` and `[…, n, b]`; their sums are in the order of n."""
    shape = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    total = np.zeros((*shape, left.shape[-2], right.shape[-1]))
    for k in range(left.shape[-1]):
        total += left[..., :, k, None] * right[..., k, None, :]
    return total


class PartialResults:
    """The results of the parts of some updates, which together are the result of all."""

    def __init__(self, updates: Updates) -> None:
        """Take the updates of which parts will be combined."""
        self._layout, self._to = updates.layout, updates.to
        self._out: Vector = updates.empty(self._layout.size) if updates.to.out is None else updates.to.out
        self._accepted = np.ones(updates.used.shape, np.bool_)
        self._finite = self._acceptance_known = True

    def put(self, columns: slice, part: Updates, combine: Combine, rows: NDArray[np.intp] | None = None) -> None:
        """Combine a part: a range of coordinates of the updates, or of some `rows` of them."""
        to, first = self._to.cut(columns).into(self._out[columns]), self._layout.first_in(columns.start)
        combined = combine(part.onto(to), columns)
        self._finite = self._finite and combined.finite
        self._acceptance_known = self._acceptance_known and combined.acceptance_known
        blocks = np.flatnonzero(self._layout.sizes[first:])[: len(part.layout.blocks)] + first
        accepted = np.zeros((len(self._accepted), len(blocks)), np.bool_)
        accepted[slice(None) if rows is None else rows] = combined.accepted
        self._accepted[:, blocks] &= accepted  # a block in several parts is accepted if all of them are

    def combined(self) -> Combined:
        """Return the result of all; a block without elements is accepted if all others are."""
        filled = self._layout.sizes > 0
        self._accepted[:, ~filled] = self._accepted[:, filled].all(axis=1, keepdims=True)
        return Combined(self._out, self._finite, self._accepted, self._acceptance_known)


def part_by_part(updates: Updates, combine: Combine, *, whole: bool = False) -> Combined:
    """Combine a mixture of updates part by part, and other updates at once.

    Args:
        updates: the updates.
        combine: combines a range of coordinates.
        whole: whether a range must consist of whole blocks.
    """
    layout = updates.layout
    if not isinstance(updates, Mixture):
        return combine(updates, slice(0, layout.size))
    fewest = max(1, min(len(updates), len(updates.updates)))
    ends = layout.offsets[1:] if whole else layout.segments(SEGMENT)[:, 2]
    bounds = [*_bounds(ends, -(-PART // fewest))]
    memory = updates.empty(len(updates), max((stop - start for start, stop in bounds), default=0))
    results = PartialResults(updates)
    for start, stop in bounds:
        rows = updates.tile(slice(start, stop), memory[:, : stop - start])
        inner = layout.restrict(start, stop)
        sent = np.ones((len(rows), len(inner.blocks)), np.bool_)
        part = Updates(inner, list(rows), sent, finite=True, weights=updates.weights)
        results.put(slice(start, stop), part, combine)
    return results.combined()


def by_parts(
    operation: Callable[Concatenate[Updates, P], Combined],
) -> Callable[Concatenate[Updates, P], Combined]:
    """Apply an operation on single coordinates to a mixture of updates part by part."""

    @wraps(operation)
    def combine(updates: Updates, /, *arguments: P.args, **more: P.kwargs) -> Combined:
        return part_by_part(updates, lambda part, _: operation(part, *arguments, **more))

    return combine


def combine_what_was_sent(updates: Updates, combine: Combine) -> Combined:
    """Combine each block from the updates that have it; blocks that the same updates have are combined together.

    Args:
        updates: the updates, all finite.
        combine: combines a range of coordinates of some of the updates.
    """
    layout, used = updates.layout, updates.used
    results = PartialResults(updates)
    filled = np.flatnonzero(layout.sizes)
    changes = np.flatnonzero((used[:, filled[1:]] != used[:, filled[:-1]]).any(axis=0)) + 1
    for blocks in np.split(filled, changes) if len(filled) else ():
        start, stop = int(layout.offsets[blocks[0]]), int(layout.offsets[blocks[-1] + 1])
        rows, inner = np.flatnonzero(used[:, blocks[0]]), layout.restrict(start, stop)
        payloads = [updates.range_of(int(row), start, stop) for row in rows]
        sent = np.ones((len(rows), len(inner.blocks)), np.bool_)
        weights = None if updates.weights is None else updates.weights[rows]
        part = Updates(inner, payloads, sent, finite=True, weights=weights)
        results.put(slice(start, stop), part, combine, rows)
    return results.combined()


def _bounds(ends: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Group consecutive ranges, given by their ends, into ranges of at least `most` elements; the last may be less."""
    start = 0
    while len(ends) and start < ends[-1]:
        last = min(int(np.searchsorted(ends, start + most)), len(ends) - 1)
        yield start, int(ends[last])
        start = int(ends[last])
