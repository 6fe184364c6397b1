"""The updates of one round as they were received, where the result of an operation is written, and the result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import fsum
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics import arrays
from hpcps.numerics.blocks import Float64
from hpcps.numerics.layout import Layout, Mask, Vector


class NotFiniteError(ValueError):
    """An update that was not known to be finite contains a NaN or an infinity.

    `rules.base.combine_finite` catches it, rejects the blocks that are not finite, and calls the rule again.
    """


@dataclass(frozen=True)
class Destination:
    """Where the result of an operation is written, and with how many threads.

    Attributes:
        base: the vector `[d]` to which the rounded result is added; by default none.
        out: the vector `[d]` for the result; by default a new one. It may be the base if
            the updates are known to be finite.
        threads: the maximum number of threads; the result does not depend on it.
    """

    base: Vector | None = None
    out: Vector | None = None
    threads: int = 1

    def cut(self, columns: slice) -> Destination:
        """Return the destination of a range of coordinates."""
        base, out = (None if vector is None else vector[columns] for vector in (self.base, self.out))
        return Destination(base, out, self.threads)

    def into(self, out: Vector) -> Destination:
        """Return this destination with another vector for the result."""
        return Destination(self.base, out, self.threads)


NEW_ARRAY = Destination()
"""A new array, one thread."""


@dataclass(frozen=True)
class Combined:
    """The result of an operation, or of a rule, on n updates.

    Attributes:
        update: the combined update `[d]`, finite; or, if there was a base, the sum of the base and the update.
        finite: whether `update` is finite; it may not be if the base is not, or if the sum overflows.
        accepted: the (update, block) pairs in it, `[n, B]`; none if there were too few updates for the rule.
        acceptance_known: whether the rule states `accepted`; if not, it is all pairs, and records say null.
    """

    update: Vector
    finite: bool
    accepted: Mask
    acceptance_known: bool = True


def unequal(weights: Float64 | None) -> Float64 | None:
    """Return the weights of updates; None if they are equal, so that the results are those without weights."""
    return None if weights is None or not len(weights) or (weights == weights[0]).all() else weights


class Updates:
    """n updates of one layout, and where the result of an operation on them is written.

    Payloads are neither copied nor written to: they may be in another process's memory. They are all arrays of numpy,
    or all tensors of torch on one device.

    Attributes:
        layout: the blocks of the d elements.
        payloads: the sent blocks of each update, one after another, `[m]`: float32, or a tensor of any floating type.
        sent: the blocks that the payloads hold: `[n, B]`.
        used: the sent blocks that are not rejected: `[n, B]`. For every rule, all other blocks are zero.
        finite: whether all values of used blocks are known to be finite.
        to: where the result is written; tensors if the payloads are.
        weights: how much each update counts, `[n]`, positive; None if all count alike.
    """

    lazy: ClassVar[bool] = False
    """Whether the rows are not in memory, but computed where they are read; see `mixture`."""

    def __init__(
        self,
        layout: Layout,
        payloads: Sequence[Vector],
        sent: Mask,
        refused: Mask | None = None,
        *,
        finite: bool = False,
        to: Destination = NEW_ARRAY,
        weights: Float64 | None = None,
    ) -> None:
        """Take the payloads.

        Args:
            layout: the blocks of the d elements.
            payloads: the sent blocks of each update; the row of `sent` gives the size.
            sent: the blocks that each payload holds: `[n, B]`.
            refused: the blocks that are rejected; by default none.
            finite: whether all values of used blocks are known to be finite.
            to: where the result is written.
            weights: how much each update counts, `[n]`, positive; by default, and if they are equal, all count alike.
        """
        self.layout = layout
        self.payloads = tuple(arrays.aligned(payload) for payload in payloads)
        self.sent = sent
        self.used: Mask = sent if refused is None else sent & ~refused
        self.finite = finite
        self.to = to
        self.weights = unequal(weights)

    @classmethod
    def of(cls, matrix: Vector, layout: Layout, weights: Float64 | None = None) -> Updates:
        """Return updates that have sent all blocks, `[n, d]`, without copying them."""
        return cls(layout, list(matrix), np.ones((len(matrix), len(layout.blocks)), np.bool_), weights=weights)

    @property
    def relative_weights(self) -> Float64:
        """The weights with the sum n: `[n]`; exactly 1 if all updates count alike."""
        if self.weights is None:
            return np.ones(len(self))
        found: Float64 = self.weights * (len(self) / fsum(self.weights))
        return found

    @classmethod
    def join(cls, parts: Sequence[Updates]) -> Updates:
        """Concatenate updates of the same layout, without their weights; there must be at least one part."""
        payloads = [payload for part in parts for payload in part.payloads]
        sent, used = (np.concatenate(masks) for masks in ([p.sent for p in parts], [p.used for p in parts]))
        first = parts[0]
        return cls(first.layout, payloads, sent, ~used, finite=all(part.finite for part in parts), to=first.to)

    def __len__(self) -> int:
        return len(self.payloads)

    @cached_property
    def on_host(self) -> bool:
        """Whether the rows are arrays of numpy, or the result if there is no row; otherwise they are tensors."""
        return not any(map(arrays.is_tensor, (*self.payloads[:1], self.to.out)))

    def empty(self, *shape: int) -> Vector:
        """Return a float32 array or tensor where the rows are, contents unspecified."""
        return arrays.empty(shape, self.payloads[0] if self.payloads else self.to.out)

    def onto(self, to: Destination) -> Updates:
        """Return the same updates with another destination."""
        return Updates(
            self.layout, self.payloads, self.sent, ~self.used, finite=self.finite, to=to, weights=self.weights
        )

    def with_row(self, row: Vector | None) -> Updates:
        """Return the updates and one more `[d]`, which has sent all blocks; the same updates if there is none."""
        return self if row is None else Updates.join((self, Updates.of(row[None, :], self.layout)))

    def without(self, refused: Mask) -> Updates:
        """Reject blocks `[n, B]` and return the updates, whose used blocks are then known to be finite."""
        refused = refused | (self.sent & ~self.used)
        return Updates(self.layout, self.payloads, self.sent, refused, finite=True, to=self.to, weights=self.weights)

    def select(self, rows: NDArray[np.intp]) -> Updates:
        """Return some of the updates, without copying them."""
        payloads, weights = [self.payloads[row] for row in rows], None if self.weights is None else self.weights[rows]
        return Updates(
            self.layout, payloads, self.sent[rows], ~self.used[rows], finite=self.finite, to=self.to, weights=weights
        )

    def range_of(self, row: int, start: int, stop: int) -> Vector:
        """Return a range of coordinates of one update, without copying it; all blocks in the range must be used."""
        pieces = self.runs[row]
        low, _, taken = pieces[np.searchsorted(pieces[:, 1], start, side="right")].tolist()
        return self.payloads[row][taken + start - low : taken + stop - low]

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """The position of each used block in its payload, -1 for the others: `[n, B]`."""
        sizes = np.where(self.sent, self.layout.sizes, 0)
        return np.where(self.used, np.cumsum(sizes, axis=1) - sizes, -1)

    @cached_property
    def runs(self) -> tuple[NDArray[np.int64], ...]:
        """The used ranges of each update, `[r, 3]`: first element, element after the last, position in the payload."""
        return tuple(self._runs(row) for row in range(len(self)))

    def _runs(self, row: int) -> NDArray[np.int64]:
        """Return the maximal ranges of an update that are contiguous in the vector and in the payload.

        The blocks on both sides of a rejected block are contiguous in neither.
        """
        ranges = np.array(self.layout.runs(self.used[row]), np.int64).reshape(-1, 2)
        filled = ranges[ranges[:, 0] < ranges[:, 1]]
        first = np.searchsorted(self.layout.offsets, filled[:, 0], side="right") - 1
        return np.column_stack((filled, self.starts[row, first]))

    def tile(self, columns: slice, out: Vector | None = None) -> Vector:
        """Gather the elements of a range of coordinates `[n, t]`, into `out` if given; unused blocks are zero."""
        start, stop = columns.start, columns.stop
        values = self.empty(len(self), stop - start) if out is None else out
        for row, payload, pieces in zip(values, self.payloads, self.runs, strict=True):
            if len(pieces) == 1 and pieces[0, 0] <= start and stop <= pieces[0, 1]:
                taken = int(pieces[0, 2] - pieces[0, 0])
                row[:] = payload[taken + start : taken + stop]
                continue
            row[:] = 0
            first = np.searchsorted(pieces[:, 1], start, side="right")
            last = np.searchsorted(pieces[:, 0], stop, side="left")
            for low, high, taken in pieces[first:last].tolist():
                a, b = max(low, start), min(high, stop)
                row[a - start : b - start] = payload[taken + a - low : taken + b - low]
        return values

    def columns(self, indices: NDArray[np.int64]) -> Vector:
        """Gather single coordinates `[n, len(indices)]` on the host; unused blocks are zero."""
        values = np.zeros((len(self), len(indices)), np.float32)
        for row, payload, pieces in zip(values, self.payloads, self.runs, strict=True):
            if len(pieces):
                piece = pieces[np.searchsorted(pieces[:-1, 1], indices, side="right")]
                held = (piece[:, 0] <= indices) & (indices < piece[:, 1])
                row[held] = arrays.take(payload, (piece[:, 2] + indices - piece[:, 0])[held])
        return values
