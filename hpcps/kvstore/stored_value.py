"""The value of one key on a server, and the pushes of the current round."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from hpcps.kvstore.protocol import ValueDescription
from hpcps.transport.pslite.meta import Meta
from hpcps.transport.pslite.sender import Receipt

Array = npt.NDArray[Any]
Update = Callable[[int, Array, Array], None]
"""Changes a stored value in place: `update(key, pushed, stored)`."""


class StoredValue:
    """A stored value.

    A value stays in the memory in which it was received. The first push of a round becomes the sum and then the value.
    Its memory is freed when the next value has replaced it and no message uses it. No value is therefore copied.

    Args:
        value: the first value `[m]`.
        source: the worker that pushed it.
    """

    def __init__(self, value: Array, source: str) -> None:
        self.value = value
        self.source = source
        self._sending: list[Receipt] = []
        self._round: dict[int, tuple[Array, Meta]] = {}
        self._later: list[tuple[int, Array, Meta]] = []
        self._merged: Array | None = None
        self._next = 0

    @property
    def description(self) -> ValueDescription:
        """The description of the value."""
        return ValueDescription(self.value.size, self.value.dtype.name, self.source)

    def sending(self, receipt: Receipt) -> None:
        """Record that a message with the value is being sent."""
        self._sending = [receipt, *(other for other in self._sending if not other.done)]

    def put(self, value: Array) -> None:
        """Replace the value."""
        self.value, self._sending = value, []

    def change(self, key: int, pushed: Array, update: Update) -> None:
        """Apply an update to the value, or to a copy of it if the value is being sent."""
        if not self.value.flags.writeable or not all(receipt.done for receipt in self._sending):
            self.put(self.value.copy())
        update(key, pushed, self.value)

    def gather(self, rank: int, pushed: Array, meta: Meta, workers: int) -> tuple[Array, dict[int, Meta]] | None:
        """Add the push of a worker to this round; after the last one, return the sum of all pushes and their requests.

        Pushes are summed in the order of ranks, independent of the order of arrival. A second push of a worker belongs
        to the next round.
        """
        if rank in self._round:
            self._later.append((rank, pushed, meta))
            return None
        self._round[rank] = (pushed, meta)
        while self._next in self._round and self._next < workers:
            self._fold(self._round[self._next][0])
            self._next += 1
        if self._next < workers:
            return None
        assert self._merged is not None
        done = self._merged, {rank: meta for rank, (_, meta) in self._round.items()}
        self._round, self._merged, self._next = {}, None, 0
        return done

    def later(self) -> list[tuple[int, Array, Meta]]:
        """Return the pushes of the next rounds that have arrived already."""
        later, self._later = self._later, []
        return later

    def _fold(self, pushed: Array) -> None:
        if self._merged is None:
            self._merged = pushed if pushed.flags.writeable else pushed.copy()
        else:
            self._merged += pushed
