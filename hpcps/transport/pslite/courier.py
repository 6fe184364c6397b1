"""Carries the messages of a node to its peers, with acknowledgements if they are on."""

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
    """Says when the memory that was sent may be changed."""

    def __init__(self, tracker: zmq.MessageTracker | None, courier: Courier, to: int, named: int | None) -> None:
        self._tracker, self._courier, self._to, self._named = tracker, courier, to, named

    @property
    def done(self) -> bool:
        """Whether the memory is out of ZeroMQ's hands, and will not be sent again."""
        if self._named is not None and self._courier.keeps(self._to, self._named):
            return False
        return self._tracker is None or bool(self._tracker.done)

    def arrived(self) -> None:
        """The answer is here, so the message has arrived, acknowledged or not."""
        if self._named is not None:
            self._courier.acknowledged(self._to, self._named)


class Courier:
    """Sends from any thread; the rest is for the thread that receives.

    Attributes:
        given_up: to whom a message was sent as often as may be, and is not acknowledged.
    """

    def __init__(self, settings: Settings, sockets: Sockets) -> None:
        self._sockets = sockets
        self._resender = Resender(settings.resend_timeout, settings.resend_limit) if settings.resend else None
        self._lock = Lock()
        self.given_up: list[int] = []

    @property
    def acknowledges(self) -> bool:
        """Whether acknowledgements are on."""
        return self._resender is not None

    @property
    def resent(self) -> int:
        """How many messages were sent again."""
        return self._resender.resent if self._resender else 0

    @property
    def duplicates(self) -> int:
        """How many messages came again, and were not delivered again."""
        return self._resender.duplicates if self._resender else 0

    def send(self, me: int, to: int, meta: Meta, data: Sequence[Any]) -> Receipt:
        """Begin to send a message."""
        frames = (encode(meta), *data)
        named = None
        if self._resender is not None and tracked(meta):
            named = signature(meta, me, to)
            with self._lock:  # before it leaves: the acknowledgement may be quick
                self._resender.sent(to, named, frames, time.monotonic())
        return Receipt(self._sockets.send(to, frames), self, to, named)

    def acknowledge(self, me: int, sender: int, meta: Meta) -> bool:
        """Acknowledge a message that came; say whether it is new. Without acknowledgements, all are."""
        if self._resender is None:
            return True
        named = signature(meta, sender, me)
        with self._lock:
            new = self._resender.is_new(sender, named, meta.control is not None)
        if self._sockets.reaches(sender):
            self._sockets.send(sender, (encode(Meta(control=Control(Command.ACK, signature=named))),))
        return new

    def acknowledged(self, by: int, named: int) -> None:
        """A message has arrived."""
        if self._resender is not None:
            with self._lock:
                self._resender.acknowledged(by, named)

    def keeps(self, to: int, named: int) -> bool:
        """Whether a message may be sent again."""
        return self._resender is not None and self._resender.waits_for(to, named)

    def replaced(self, node: int) -> None:
        """Another process took a dead node's id; it counts its messages anew."""
        if self._resender is not None:
            with self._lock:
                self._resender.forget(node)

    def outstanding(self) -> int:
        """Count what is not acknowledged yet."""
        if self._resender is None:
            return 0
        with self._lock:
            return self._resender.outstanding()

    def send_again(self, nodes: dict[int, NodeInfo]) -> None:
        """Send again what should have been acknowledged by now."""
        if self._resender is None:
            return
        with self._lock:
            again, lost = self._resender.due(time.monotonic())
        for kept in again:
            if self._sockets.reaches(kept.to):
                self._sockets.send(kept.to, kept.frames)
        for kept in lost:
            self.given_up.append(kept.to)
            _log.error("a message to the %s is given up: sent %d times, not acknowledged", nodes[kept.to], kept.sent)
