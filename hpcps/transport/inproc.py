"""Messages between the roles of one process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np

from hpcps.protocol.messages import Malformed, MalformedMessageError, Message, Peer, Received
from hpcps.transport.base import Traffic

Packet = tuple[Peer, bytes, bytes | None]
"""Sender, header and payload of a message."""
Carry = Callable[[Peer, Peer, int, Callable[[], None]], None]


def at_once(source: Peer, to: Peer, size: int, arrive: Callable[[], None]) -> None:
    """Deliver a message immediately."""
    arrive()


class Exchange:
    """The mailboxes of all roles of a run."""

    def __init__(self, carry: Carry = at_once, scale: float = 1.0) -> None:
        """Create the exchange.

        Args:
            carry: takes sender, receiver, number of bytes, and a function to call when the message arrives.
            scale: a factor on the bytes of payloads that are carried and counted, to simulate a larger model.
        """
        self._boxes: dict[Peer, deque[Packet]] = {}
        self._carry = carry
        self._scale = scale

    def endpoint(self, owner: Peer) -> InprocTransport:
        """Return the transport of one role."""
        self._boxes[owner] = deque()
        return InprocTransport(owner, self._boxes, self._carry, self._scale)


class InprocTransport:
    """The end of an `Exchange` for one role; it encodes every message to bytes, as a network transport does."""

    def __init__(self, owner: Peer, boxes: dict[Peer, deque[Packet]], carry: Carry, scale: float = 1.0) -> None:
        self._owner = owner
        self._boxes = boxes
        self._carry = carry
        self.traffic = Traffic(scale=scale)

    def send(self, to: Peer, message: Message) -> None:
        """See `MessageTransport.send`."""
        header = message.header()
        payload = None if message.payload is None or not message.payload.size else message.payload.tobytes()
        size = self.traffic.size(header, message.payload_bytes)
        self._carry(self._owner, to, size, partial(self._boxes[to].append, (self._owner, header, payload)))
        self.traffic.sent += size

    def receive(self) -> Received | Malformed | None:
        """See `MessageTransport.receive`."""
        if not self._boxes[self._owner]:
            return None
        source, header, payload = self._boxes[self._owner].popleft()
        self.traffic.received += self.traffic.size(header, len(payload) if payload else 0)
        try:
            values = None if payload is None else np.frombuffer(payload, np.float32)
            return Received(source, Message.decode(header, values))
        except MalformedMessageError as error:
            return Malformed(source, str(error))
