"""What a sender still has to say of a round, to receivers that take so much at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from hpcps.messages import Kind, Message, Peer
from hpcps.roles.events import Send

WINDOW = 4
"""Partitions that a sender may be ahead of what its receiver has dealt with: one that is combined, one that is there,
one that comes, and one until the sender hears of it. A receiver holds so many of each of its senders at most. More do
not help: the network lets one sender fall behind the others by what they may be ahead, and at the end of the round all
wait for that one."""


def grants(sender: Peer, run_id: str, round: int, dealt_with: int, total: int, to: Sequence[Peer]) -> Iterator[Send]:
    """Let senders go on who are told nothing else, now that so many of their partitions are dealt with."""
    if dealt_with + WINDOW <= total:
        for peer in to:
            yield Send(peer, Message(Kind.GRANT, sender, run_id, round, partition=dealt_with + WINDOW))


class Outbox:
    """Keeps back the messages of partitions that their receivers do not take yet."""

    def __init__(self) -> None:
        self._kept: dict[Peer, deque[Message]] = {}
        self._granted: dict[Peer, int] = {}

    @property
    def empty(self) -> bool:
        """Whether everything is sent."""
        return not self.waiting_for

    @property
    def waiting_for(self) -> tuple[Peer, ...]:
        """The receivers that have to take more before they get the rest."""
        return tuple(peer for peer, messages in self._kept.items() if messages)

    def clear(self) -> None:
        """Begin another round."""
        assert self.empty, "a round is over once everything is sent"
        self._granted.clear()

    def put(self, to: Peer, message: Message) -> Iterator[Send]:
        """Send the next partition, now if its receiver takes it."""
        self._kept.setdefault(to, deque()).append(message)
        yield from self._send(to)

    def dealt_with(self, source: Peer, partitions: int) -> Iterator[Send]:
        """A receiver is done with so many partitions of this round: it takes more."""
        yield from self.grant(source, partitions + WINDOW)

    def grant(self, source: Peer, partitions: int) -> Iterator[Send]:
        """A receiver takes so many partitions of this round in all."""
        self._granted[source] = max(partitions, self._granted.get(source, WINDOW))
        yield from self._send(source)

    def _send(self, to: Peer) -> Iterator[Send]:
        messages = self._kept.get(to, deque())
        while messages and messages[0].partition < self._granted.get(to, WINDOW):
            yield Send(to, messages.popleft())
