"""What several senders have sent, until all have sent it: the partitions of a round, and the tensors of a script."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Generic, TypeVar

from hpcps.protocol.messages import Peer

Row = TypeVar("Row")
_Piece = tuple[int, int, Row | None]


def span(first: int, stop: int) -> int:
    """Return the set of the slots of a span, as the bits of a number."""
    return (1 << stop) - (1 << first)


def spans(slots: int) -> Iterator[tuple[int, int]]:
    """Return the spans, as (first, stop), of a set of slots."""
    while slots:
        first = (slots & -slots).bit_length() - 1
        rest = ~(slots >> first)
        stop = first + (rest & -rest).bit_length() - 1
        yield first, stop
        slots = slots >> stop << stop


class Collector(Generic[Row]):
    """Collects rows: what each sender sends of numbered slots, which are taken to be combined.

    A sender sends spans of slots, in any order; the spans of two senders may differ. It may also send a span without a
    row, as it has none: its slots are combined without it. Rows are not copied, so what is sent must not change before
    the sender has the result.
    """

    def __init__(self, senders: Sequence[Peer], cut: Callable[[Row, int, int, int], Row] | None = None) -> None:
        """Begin with nothing.

        Args:
            senders: the senders, in the order in which their rows are combined.
            cut: returns the part of a row, whose first slot is given, that some slots are: `cut(row, begin, first,
                stop)`; it is needed if spans have several slots.
        """
        self._cut = cut
        self._sent = dict.fromkeys(senders, 0)
        self._pieces: dict[Peer, list[_Piece[Row]]] = {sender: [] for sender in senders}

    def put(self, sender: Peer, first: int, stop: int, row: Row | None) -> Iterator[tuple[int, int]]:
        """Take a span of a sender; return the spans of it that all have sent now.

        Raises:
            ValueError: it has sent some of these slots, and they are not taken yet.
        """
        slots = span(first, stop)
        if slots & self._sent[sender]:
            raise ValueError(f"slots {first} to {stop - 1} of {sender} are here already")
        self._sent[sender] |= slots
        self._pieces[sender].append((first, stop, row))
        for sent in self._sent.values():
            slots &= sent
        return spans(slots)

    def take(self, first: int, stop: int, of: Collection[Peer] | None = None) -> tuple[int, dict[Peer, Row]]:
        """Remove slots that senders have sent, up to the end of a span as one of them sent it.

        Args:
            first: the first slot.
            stop: the end of the slots.
            of: the senders; by default all.

        Returns:
            The end of the removed slots, and the rows of them by sender; those without a row are left out.
        """
        found = {
            sender: next(k for k, (begin, end, _) in enumerate(pieces) if begin <= first < end)
            for sender, pieces in self._pieces.items()
            if of is None or sender in of
        }
        stop = min(stop, *(self._pieces[sender][k][1] for sender, k in found.items())) if found else stop
        rows: dict[Peer, Row] = {}
        slots = ~span(first, stop)
        for sender, k in found.items():
            begin, end, row = self._pieces[sender].pop(k)
            if (begin, end) == (first, stop):
                part = row
            else:
                for low, high in ((begin, first), (stop, end)):
                    if low < high:
                        self._pieces[sender].append((low, high, self._part(row, begin, low, high)))
                part = self._part(row, begin, first, stop)
            if part is not None:
                rows[sender] = part
            self._sent[sender] &= slots
        return stop, rows

    def _part(self, row: Row | None, begin: int, first: int, stop: int) -> Row | None:
        assert self._cut is not None, "spans have one slot"
        return None if row is None else self._cut(row, begin, first, stop)

    def forget(self, sender: Peer) -> None:
        """Drop all that a sender has sent."""
        self._sent[sender] = 0
        self._pieces[sender].clear()

    def has(self, sender: Peer, slot: int) -> bool:
        """Return whether a sender has sent a slot."""
        return bool(self._sent[sender] >> slot & 1)

    @property
    def begun(self) -> bool:
        """Whether there is a slot that was sent and not taken."""
        return any(self._sent.values())

    def waiting_for(self, slot: int) -> list[Peer]:
        """Return the senders that have not sent a slot."""
        return [sender for sender, sent in self._sent.items() if not sent >> slot & 1]

    def awaited_of(self, sender: Peer) -> int:
        """Return the slots that other senders have sent, and this one has not."""
        slots = 0
        for sent in self._sent.values():
            slots |= sent
        return slots & ~self._sent[sender]
