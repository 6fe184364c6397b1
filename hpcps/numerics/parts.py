"""Combines a mixture, or updates without some blocks, range by range, so that only a range is in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Concatenate, ParamSpec

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics.blocks import SEGMENT
from hpcps.numerics.destination import Combined
from hpcps.numerics.layout import Vector
from hpcps.numerics.mixture import Mixture
from hpcps.numerics.updates import Updates

P = ParamSpec("P")
Combine = Callable[[Updates, slice], Combined]
"""Combines a part of some updates: a range of coordinates of them."""

PART = 1 << 22
"""Elements of a part, over all rows: few enough for a processor's cache, and enough for several threads."""


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
        results.put(slice(start, stop), Updates(inner, list(rows), sent, checked=True), combine)
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
    """Combine each block of those updates only that have it; blocks that the same updates have are combined together.

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
        results.put(slice(start, stop), Updates(inner, payloads, sent, checked=True), combine, rows)
    return results.combined()


def _bounds(ends: NDArray[np.int64], most: int) -> Iterator[tuple[int, int]]:
    """Group consecutive ranges, given by their ends, into ranges of at least `most` elements; the last may be less."""
    start = 0
    while len(ends) and start < ends[-1]:
        last = min(int(np.searchsorted(ends, start + most)), len(ends) - 1)
        yield start, int(ends[last])
        start = int(ends[last])
