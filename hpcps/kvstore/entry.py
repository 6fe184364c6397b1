"""The value of one key on a server, and the pushes that it waits for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from hpcps.transport.pslite.courier import Receipt
from hpcps.transport.pslite.meta import Meta

Array = npt.NDArray[Any]
Update = Callable[[int, Array, Array], None]
"""Changes a stored value in place: `update(key, pushed, stored)`."""


class Entry:
    """A stored value.

    It stays in the memory in which it came: of one round's pushes, the first to be summed becomes the value, and its
    memory goes when the next value replaces it and nothing is sent from it any more. So no value is ever copied here.

    Args:
        value: the first value `[m]`.
    """

    def __init__(self, value: Array) -> None:
        self.value = value
        self._sending: list[Receipt] = []
        self._round: dict[int, tuple[Array, Meta]] = {}
        self._later: list[tuple[int, Array, Meta]] = []
        self._merged: Array | None = None
        self._next = 0

    def lent(self, receipt: Receipt) -> None:
        """The value is being sent."""
        self._sending = [receipt, *(other for other in self._sending if not other.done)]

    def put(self, value: Array) -> None:
        """Replace the value."""
        self.value, self._sending = value, []

    def change(self, key: int, pushed: Array, update: Update) -> None:
        """Let an update change the value; one that is being sent stays as it is, and a copy is changed."""
        if not self.value.flags.writeable or not all(receipt.done for receipt in self._sending):
            self.put(self.value.copy())
        update(key, pushed, self.value)

    def gather(self, rank: int, pushed: Array, meta: Meta, workers: int) -> tuple[Array, dict[int, Meta]] | None:
        """Take in a worker's push of this round; return the sum of all and their requests when it is the last one.

        The sum is made in the order of ranks, whatever the order of arrival. A second push of a worker belongs to the
        next round.
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
        """Return the pushes that came before their round."""
        later, self._later = self._later, []
        return later

    def _fold(self, pushed: Array) -> None:
        if self._merged is None:
            self._merged = pushed if pushed.flags.writeable else pushed.copy()
        else:
            self._merged += pushed
