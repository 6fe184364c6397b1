"""Acknowledgements: what is not acknowledged is sent again, and what comes twice is taken once."""

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
    """Return what an acknowledgement names a message by.

    As the protocol has it: 16 bits of the application, 8 of either id, and the timestamp with the request bit, added as
    a signed number of 32 bits.
    """
    low = (meta.timestamp << 1 | meta.request) & 0xFFFFFFFF
    if low >= 1 << 31:
        low |= 0xFFFFFFFF00000000
    return (meta.app & 0xFFFF) << 48 | (sender & 0xFF) << 40 | (receiver & 0xFF) << 32 | low


@dataclass
class Pending:
    """A message that was sent and is not acknowledged yet."""

    to: int
    signature: int
    frames: tuple[object, ...]
    due: float
    sent: int = 1


class Resender:
    """Keeps what was sent until it is acknowledged, and remembers what has come. Knows no clock and no socket."""

    def __init__(self, timeout: float, limit: int) -> None:
        self._timeout = timeout
        self._limit = limit
        self._pending: dict[tuple[int, int], Pending] = {}
        # Timestamps have gaps (a request need not go to every server), so each is remembered, for far longer than a
        # message can be under way.
        self._come: dict[int, OrderedDict[tuple[int, int], None]] = {}
        self.resent = 0
        self.duplicates = 0

    def sent(self, to: int, signature: int, frames: tuple[object, ...], now: float) -> Pending:
        """Keep a message that is being sent."""
        kept = Pending(to, signature, frames, now + self._timeout)
        self._pending[to, signature] = kept
        return kept

    def waits_for(self, to: int, signature: int) -> bool:
        """Whether a message is not acknowledged yet."""
        return (to, signature) in self._pending

    def acknowledged(self, by: int, signature: int) -> None:
        """Forget a message that has arrived; one acknowledged twice is forgotten already."""
        self._pending.pop((by, signature), None)

    def is_new(self, sender: int, signature: int, control: bool) -> bool:
        """Remember a message that came; say whether it came for the first time.

        Args:
            sender: its full id: a signature has room for 8 bits of it.
            signature: what its acknowledgement names.
            control: whether it is a control message. Nodes count the timestamps of those apart, so one of each may
                carry the same signature.
        """
        come = self._come.setdefault(sender, OrderedDict())
        if (signature, control) in come:
            self.duplicates += 1
            return False
        come[signature, control] = None
        if len(come) > _REMEMBERED:
            come.popitem(last=False)
        return True

    def due(self, now: float) -> tuple[list[Pending], list[Pending]]:
        """Return what is to be sent again, and what is given up after so many times."""
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
        """A node died and another took its id, which counts its timestamps from zero again."""
        self._come.pop(node, None)

    def outstanding(self, nodes: Iterable[int] | None = None) -> int:
        """Count what is not acknowledged, by some nodes or by any."""
        chosen = None if nodes is None else set(nodes)
        return sum(chosen is None or kept.to in chosen for kept in list(self._pending.values()))
