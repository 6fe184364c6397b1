"""The updates of one round as they came: payloads that stay where they are, and which blocks each holds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from hpcps.layout import Layout, Mask, Vector
from hpcps.packing import runs


class NotFiniteError(ValueError):
    """Updates that were not known to be finite are not."""


class Updates:
    """n updates of one layout; nothing is copied and no payload is ever written to, as it may be another process's.

    Attributes:
        layout: the blocks of the d elements.
        payloads: of each update its sent blocks, one after another, float32 `[m]`.
        sent: which blocks the payloads hold: `[n, B]`.
        used: which of them count; the others are refused, and are zero to every rule, as what was never sent is.
    """

    def __init__(
        self,
        layout: Layout,
        payloads: Sequence[Vector],
        sent: Mask,
        refused: Mask | None = None,
        *,
        checked: bool = False,
    ) -> None:
        """Take the payloads.

        Args:
            layout: the blocks of the d elements.
            payloads: of each update its sent blocks; of the size that its row of `sent` says.
            sent: which blocks each payload holds: `[n, B]`.
            refused: which of them do not count; by default all do.
            checked: whether no value that counts is a NaN or an infinity, for certain.
        """
        self.layout = layout
        # Other processes' buffers are aligned; what is not (a piece of a file, say) is copied, for the sake of kernels.
        self.payloads = tuple(np.require(payload, np.float32, ["C", "A"]) for payload in payloads)
        self.sent = sent
        self.used: Mask = sent if refused is None else sent & ~refused
        self.checked = checked

    @classmethod
    def of(cls, matrix: Vector, layout: Layout) -> Updates:
        """Take whole updates `[n, d]`, without copying them."""
        return cls(layout, list(matrix), np.ones((len(matrix), len(layout.blocks)), np.bool_))

    @classmethod
    def nothing(cls, layout: Layout) -> Updates:
        """Return one update of which nothing was sent."""
        return cls(layout, [np.zeros(0, np.float32)], np.zeros((1, len(layout.blocks)), np.bool_), checked=True)

    @classmethod
    def join(cls, parts: Sequence[Updates]) -> Updates:
        """Return the updates of all the parts, one or more of the same layout, in order."""
        payloads = [payload for part in parts for payload in part.payloads]
        sent, used = (np.concatenate(masks) for masks in ([p.sent for p in parts], [p.used for p in parts]))
        return cls(parts[0].layout, payloads, sent, ~used, checked=all(part.checked for part in parts))

    def __len__(self) -> int:
        return len(self.payloads)

    def without(self, refused: Mask) -> Updates:
        """Return these updates, known to be finite now that some of their blocks `[n, B]` count as skipped."""
        return Updates(self.layout, self.payloads, self.sent, refused | (self.sent & ~self.used), checked=True)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """Where each block that counts begins in its payload, -1 for the others: `[n, B]`."""
        sizes = np.where(self.sent, self.layout.sizes, 0)
        return np.where(self.used, np.cumsum(sizes, axis=1) - sizes, -1)

    @cached_property
    def runs(self) -> tuple[NDArray[np.int64], ...]:
        """What counts of each update, as `[r, 3]`: from and to which element, and where in the payload that begins."""
        return tuple(self._runs(row) for row in range(len(self)))

    def _runs(self, row: int) -> NDArray[np.int64]:
        """Cut an update where something is missing before or after; blocks that touch in both places stay together.

        Blocks of a refused one's neighbourhood never touch: something lies between them in both places.
        """
        ranges = np.array(runs(self.layout, self.used[row]), np.int64).reshape(-1, 2)
        filled = ranges[ranges[:, 0] < ranges[:, 1]]
        first = np.searchsorted(self.layout.offsets, filled[:, 0], side="right") - 1
        return np.column_stack((filled, self.starts[row, first]))

    def tile(self, columns: slice, out: Vector | None = None) -> Vector:
        """Gather the elements of a range of coordinates `[n, t]`, into `out` if given; zero where nothing counts."""
        start, stop = columns.start, columns.stop
        values = np.empty((len(self), stop - start), np.float32) if out is None else out
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
