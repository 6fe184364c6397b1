"""Acknowledgements: send unacknowledged messages again, and detect duplicates."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from hpcps.transport.pslite.meta import Command, Meta

_UNTRACKED = (Command.ACK, Command.ADD_NODE, Command.TERMINATE)
_REMEMBERED = 1 << 16


def tracked(meta: Meta) -> bool:
    """Whether a message is acknowledged."""
    return meta.control is None or meta.control.command not in _UNTRACKED


def signature(meta: Meta, sender: int, receiver: int) -> int:
    """Return the number by which an acknowledgement identifies a message.

    The protocol defines it: 16 bits of the application, 8 bits of each id, and the timestamp with the request bit,
    added as a signed number of 32 bits.
    """
    low = (meta.timestamp << 1 | meta.request) & 0xFFFFFFFF
    if low >= 1 << 31:
        low |= 0xFFFFFFFF00000000
    return (meta.app & 0xFFFF) << 48 | (sender & 0xFF) << 40 | (receiver & 0xFF) << 32 | low


@dataclass
class Pending:
    """A sent message that is not acknowledged yet."""

    to: int
    signature: int
    frames: tuple[object, ...]
    due: float
    sent: int = 1


class Resender:
    """Keeps sent messages until they are acknowledged, and remembers received ones. It uses no clock and no socket."""

    def __init__(self, timeout: float, limit: int) -> None:
        self._timeout = timeout
        self._limit = limit
        self._pending: dict[tuple[int, int], Pending] = {}
        # Timestamps have gaps (a request need not go to every server), so each one is remembered, for much longer than
        # a message can be in transit.
        self._received: dict[int, OrderedDict[tuple[int, int], None]] = {}
        self.resent = 0
        self.duplicates = 0

    def sent(self, to: int, signature: int, frames: tuple[object, ...], now: float) -> Pending:
        """Keep a message until it is acknowledged."""
        kept = Pending(to, signature, frames, now + self._timeout)
        self._pending[to, signature] = kept
        return kept

    def waits_for(self, to: int, signature: int) -> bool:
        """Whether a message is not acknowledged yet."""
        return (to, signature) in self._pending

    def acknowledged(self, by: int, signature: int) -> None:
        """Forget an acknowledged message; a second acknowledgement has no effect."""
        self._pending.pop((by, signature), None)

    def is_new(self, sender: int, signature: int, control: bool) -> bool:
        """Remember a received message; return whether it arrived for the first time.

        Args:
            sender: the full id of its sender: a signature contains only 8 bits of it.
            signature: its signature.
            control: whether it is a control message. Nodes number these separately, so a control message and another
                message may have the same signature.
        """
        received = self._received.setdefault(sender, OrderedDict())
        if (signature, control) in received:
            self.duplicates += 1
            return False
        received[signature, control] = None
        if len(received) > _REMEMBERED:
            received.popitem(last=False)
        return True

    def due(self, now: float) -> tuple[list[Pending], list[Pending]]:
        """Return the messages to send again, and those that have failed after the maximum number of attempts."""
        again, lost = [], []
        for kept in list(self._pending.values()):
            if kept.due > now:
                continue
            if kept.sent > self._limit:
                del self._pending[kept.to, kept.signature]
                lost.append(kept)
                continue
            kept.sent += 1
            kept.due = now + self._timeout * kept.sent
            self.resent += 1
            again.append(kept)
        return again, lost

    def forget(self, node: int) -> None:
        """Forget the received messages of a node id that a new process has taken over; its timestamps start again."""
        self._received.pop(node, None)

    def outstanding(self, nodes: Iterable[int] | None = None) -> int:
        """Return the number of messages that some nodes, or any, have not acknowledged."""
        chosen = None if nodes is None else set(nodes)
        return sum(chosen is None or kept.to in chosen for kept in list(self._pending.values()))
