"""Combining updates part by part: ranges of coordinates, or blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics.blocks import SEGMENT
from hpcps.numerics.layout import Vector
from hpcps.numerics.mixture import Mixture
from hpcps.numerics.updates import Updates
from hpcps.rules.combined import Combined
from hpcps.rules.context import Context

Combine = Callable[[Updates, Context], Combined]

PART = 1 << 22
"""Elements of a part, over all rows: few enough for a processor's cache, and enough for several threads."""


class PartialResults:
    """The results of the parts of some updates, which together are the result of all."""

    def __init__(self, updates: Updates, context: Context) -> None:
        """Take the updates of which parts will be combined, and the context of all (see `Rule.combine`)."""
        self._layout, self._context = updates.layout, context
        self._out: Vector = np.empty(self._layout.size, np.float32) if context.out is None else context.out
        self._accepted = np.ones(updates.used.shape, np.bool_)
        self._finite = True

    def put(self, columns: slice, part: Updates, combine: Combine, rows: NDArray[np.intp] | None = None) -> None:
        """Combine a part: a range of coordinates of the updates, or of some `rows` of them."""
        context, first = self._context, self._layout.first_in(columns.start)
        cut = replace(
            context,
            reference=None if context.reference is None else context.reference[columns],
            base=None if context.base is None else context.base[columns],
            out=self._out[columns],
        )
        combined = combine(part, cut)
        self._finite = self._finite and combined.finite
        blocks = np.flatnonzero(self._layout.sizes[first:])[: len(part.layout.blocks)] + first
        accepted = np.zeros((len(self._accepted), len(blocks)), np.bool_)
        accepted[slice(None) if rows is None else rows] = combined.accepted
        self._accepted[:, blocks] &= accepted  # a block in several parts is accepted if all of them are

    def combined(self) -> Combined:
        """Return the result of all; a block without elements is accepted if all others are."""
        filled = self._layout.sizes > 0
        self._accepted[:, ~filled] = self._accepted[:, filled].all(axis=1, keepdims=True)
        return Combined(self._out, self._finite, self._accepted)


def combine_part_by_part(updates: Updates, context: Context, combine: Combine, *, whole: bool = False) -> Combined:
    """Combine updates part by part if their rows are computed where they are read, so that only a part is in memory.

    Args:
        updates: the updates.
        context: see `Rule.combine`.
        combine: combines a range of coordinates of the updates, with the arrays of the context cut to it.
        whole: whether a range must consist of whole blocks.
    """
    if not isinstance(updates, Mixture):
        return combine(updates, context)
    layout, fewest = updates.layout, max(1, min(len(updates), len(updates.updates)))
    ends = layout.offsets[1:] if whole else layout.segments(SEGMENT)[:, 2]
    bounds = [*_bounds(ends, -(-PART // fewest))]
    memory = np.empty((len(updates), max((stop - start for start, stop in bounds), default=0)), np.float32)
    results = PartialResults(updates, context)
    for start, stop in bounds:
        rows = updates.tile(slice(start, stop), memory[:, : stop - start])
        inner = layout.restrict(start, stop)
        sent = np.ones((len(rows), len(inner.blocks)), np.bool_)
        results.put(slice(start, stop), Updates(inner, list(rows), sent, checked=True), combine)
    return results.combined()


def _bounds(ends: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Group consecutive ranges, given by their ends, into ranges of at least `most` elements; the last may be less."""
    start = 0
    while len(ends) and start < ends[-1]:
        last = min(int(np.searchsorted(ends, start + most)), len(ends) - 1)
        yield start, int(ends[last])
        start = int(ends[last])


def combine_what_was_sent(updates: Updates, context: Context, combine: Combine) -> Combined:
    """Combine each block of those updates only that have it; blocks that the same updates have are combined together.

    For the arguments, see `combine_part_by_part`; the updates are checked.
    """
    layout, used = updates.layout, updates.used
    results = PartialResults(updates, context)
    filled = np.flatnonzero(layout.sizes)
    changes = np.flatnonzero((used[:, filled[1:]] != used[:, filled[:-1]]).any(axis=0)) + 1
    for blocks in np.split(filled, changes) if len(filled) else ():
        start, stop = int(layout.offsets[blocks[0]]), int(layout.offsets[blocks[-1] + 1])
        rows, inner = np.flatnonzero(used[:, blocks[0]]), layout.restrict(start, stop)
        payloads = [updates.range_of(int(row), start, stop) for row in rows]
        sent = np.ones((len(rows), len(inner.blocks)), np.bool_)
        results.put(slice(start, stop), Updates(inner, payloads, sent, checked=True), combine, rows)
    return results.combined()
