"""Send the messages of a node to its peers; with acknowledgements, send lost ones again, and detect duplicates."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any

import zmq

from hpcps.transport.pslite.encoding import encode
from hpcps.transport.pslite.meta import Command, Control, Meta, NodeInfo
from hpcps.transport.pslite.settings import Settings
from hpcps.transport.pslite.sockets import Sockets

_log = logging.getLogger(__name__)

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
    """Keeps sent messages until they are acknowledged, and remembers received ones; any thread may call it."""

    def __init__(self, timeout: float, limit: int) -> None:
        self._timeout = timeout
        self._limit = limit
        self._lock = Lock()
        self._pending: dict[tuple[int, int], Pending] = {}
        # Timestamps have gaps (a request need not go to every server), so each one is remembered, for much longer than
        # a message can be in transit.
        self._received: dict[int, OrderedDict[tuple[int, int], None]] = {}
        self.resent = 0
        self.duplicates = 0

    def sent(self, to: int, signature: int, frames: tuple[object, ...], now: float) -> None:
        """Keep a message until it is acknowledged."""
        with self._lock:
            self._pending[to, signature] = Pending(to, signature, frames, now + self._timeout)

    def waits_for(self, to: int, signature: int) -> bool:
        """Whether a message is not acknowledged yet."""
        return (to, signature) in self._pending

    def acknowledged(self, by: int, signature: int) -> None:
        """Forget an acknowledged message; a second acknowledgement has no effect."""
        with self._lock:
            self._pending.pop((by, signature), None)

    def is_new(self, sender: int, signature: int, control: bool) -> bool:
        """Remember a received message; return whether it arrived for the first time.

        Args:
            sender: the full id of its sender: a signature contains only 8 bits of it.
            signature: its signature.
            control: whether it is a control message. Nodes number these separately, so a control message and another
                message may have the same signature.
        """
        with self._lock:
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
        with self._lock:
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
        with self._lock:
            self._received.pop(node, None)

    def outstanding(self) -> int:
        """Return the number of messages that are not acknowledged yet."""
        return len(self._pending)


class Receipt:
    """Tells when the memory of a sent message may change."""

    def __init__(self, tracker: zmq.MessageTracker | None, sender: Sender, to: int, named: int | None) -> None:
        self._tracker, self._sender, self._to, self._named = tracker, sender, to, named

    @property
    def done(self) -> bool:
        """Whether ZeroMQ no longer uses the memory and the message will not be sent again."""
        if self._named is not None and self._sender.resender.waits_for(self._to, self._named):
            return False
        return self._tracker is None or bool(self._tracker.done)

    def arrived(self) -> None:
        """Treat the message as acknowledged, because its answer has arrived."""
        if self._named is not None:
            self._sender.resender.acknowledged(self._to, self._named)


class Sender:
    """Sends messages. Any thread may call `send`; only the receiving thread calls the other methods.

    Attributes:
        acknowledges: whether acknowledgements are on; without them `resender` keeps nothing.
        resender: the messages that are not acknowledged.
        given_up: the nodes that have not acknowledged a message after the maximum number of attempts.
    """

    def __init__(self, settings: Settings, sockets: Sockets) -> None:
        self._sockets = sockets
        self.acknowledges = settings.resend
        self.resender = Resender(settings.resend_timeout, settings.resend_limit)
        self.given_up: dict[int, None] = {}

    def send(self, me: int, to: int, meta: Meta, data: Sequence[Any]) -> Receipt:
        """Start sending a message."""
        frames = (encode(meta), *data)
        named = signature(meta, me, to) if self.acknowledges and tracked(meta) else None
        if named is not None:  # before sending, because the acknowledgement may arrive at once
            self.resender.sent(to, named, frames, time.monotonic())
        return Receipt(self._sockets.send(to, frames), self, to, named)

    def acknowledge(self, me: int, sender: int, meta: Meta) -> bool:
        """Acknowledge a received message; return whether it is new (always, if acknowledgements are off)."""
        if not self.acknowledges:
            return True
        named = signature(meta, sender, me)
        new = self.resender.is_new(sender, named, meta.control is not None)
        if self._sockets.reaches(sender):
            self._sockets.send(sender, (encode(Meta(control=Control(Command.ACK, signature=named))),))
        return new

    def replaced(self, node: int) -> None:
        """Reset the state of a node id that a new process has taken over; its message numbers start again."""
        self.given_up.pop(node, None)
        self.resender.forget(node)

    def send_again(self, nodes: dict[int, NodeInfo]) -> None:
        """Send again the messages whose acknowledgement is overdue."""
        again, lost = self.resender.due(time.monotonic())
        for kept in again:
            if self._sockets.reaches(kept.to):
                self._sockets.send(kept.to, kept.frames)
        for kept in lost:
            self.given_up[kept.to] = None
            _log.error("a message to the %s has failed: sent %d times, not acknowledged", nodes[kept.to], kept.sent)
