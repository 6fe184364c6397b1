"""Send the messages of a node to its peers, with acknowledgements if they are on."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from threading import Lock
from typing import Any

import zmq

from hpcps.transport.pslite.encoding import encode
from hpcps.transport.pslite.meta import Command, Control, Meta, NodeInfo
from hpcps.transport.pslite.resender import Resender, signature, tracked
from hpcps.transport.pslite.settings import Settings
from hpcps.transport.pslite.sockets import Sockets

_log = logging.getLogger(__name__)


class Receipt:
    """Tells when the memory of a sent message may change."""

    def __init__(self, tracker: zmq.MessageTracker | None, sender: Sender, to: int, named: int | None) -> None:
        self._tracker, self._sender, self._to, self._named = tracker, sender, to, named

    @property
    def done(self) -> bool:
        """Whether ZeroMQ no longer uses the memory and the message will not be sent again."""
        if self._named is not None and self._sender.keeps(self._to, self._named):
            return False
        return self._tracker is None or bool(self._tracker.done)

    def arrived(self) -> None:
        """Treat the message as acknowledged, because its answer has arrived."""
        if self._named is not None:
            self._sender.acknowledged(self._to, self._named)


class Sender:
    """Sends messages. Any thread may call `send`; only the receiving thread calls the other methods.

    Attributes:
        given_up: the nodes that have not acknowledged a message after the maximum number of attempts.
    """

    def __init__(self, settings: Settings, sockets: Sockets) -> None:
        self._sockets = sockets
        self._resender = Resender(settings.resend_timeout, settings.resend_limit) if settings.resend else None
        self._lock = Lock()
        self.given_up: dict[int, None] = {}

    @property
    def acknowledges(self) -> bool:
        """Whether acknowledgements are on."""
        return self._resender is not None

    @property
    def resent(self) -> int:
        """The number of messages that were sent again."""
        return self._resender.resent if self._resender else 0

    @property
    def duplicates(self) -> int:
        """The number of duplicates that arrived and were dropped."""
        return self._resender.duplicates if self._resender else 0

    def send(self, me: int, to: int, meta: Meta, data: Sequence[Any]) -> Receipt:
        """Start sending a message."""
        frames = (encode(meta), *data)
        named = None
        if self._resender is not None and tracked(meta):
            named = signature(meta, me, to)
            with self._lock:  # before sending, because the acknowledgement may arrive at once
                self._resender.sent(to, named, frames, time.monotonic())
        return Receipt(self._sockets.send(to, frames), self, to, named)

    def acknowledge(self, me: int, sender: int, meta: Meta) -> bool:
        """Acknowledge a received message; return whether it is new (always, if acknowledgements are off)."""
        if self._resender is None:
            return True
        named = signature(meta, sender, me)
        with self._lock:
            new = self._resender.is_new(sender, named, meta.control is not None)
        if self._sockets.reaches(sender):
            self._sockets.send(sender, (encode(Meta(control=Control(Command.ACK, signature=named))),))
        return new

    def acknowledged(self, by: int, named: int) -> None:
        """Record that a message is acknowledged."""
        if self._resender is not None:
            with self._lock:
                self._resender.acknowledged(by, named)

    def keeps(self, to: int, named: int) -> bool:
        """Whether a message may be sent again."""
        return self._resender is not None and self._resender.waits_for(to, named)

    def replaced(self, node: int) -> None:
        """Reset the state of a node id that a new process has taken over; its message numbers start again."""
        self.given_up.pop(node, None)
        if self._resender is not None:
            with self._lock:
                self._resender.forget(node)

    def outstanding(self) -> int:
        """Return the number of messages that are not acknowledged yet."""
        if self._resender is None:
            return 0
        with self._lock:
            return self._resender.outstanding()

    def send_again(self, nodes: dict[int, NodeInfo]) -> None:
        """Send again the messages whose acknowledgement is overdue."""
        if self._resender is None:
            return
        with self._lock:
            again, lost = self._resender.due(time.monotonic())
        for kept in again:
            if self._sockets.reaches(kept.to):
                self._sockets.send(kept.to, kept.frames)
        for kept in lost:
            self.given_up[kept.to] = None
            _log.error("a message to the %s has failed: sent %d times, not acknowledged", nodes[kept.to], kept.sent)
