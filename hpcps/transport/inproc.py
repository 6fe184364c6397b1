"""Messages between the roles of one process."""

from __future__ import annotations

from collections import deque

import numpy as np

from hpcps.messages import Malformed, MalformedMessageError, Message, Peer, Received
from hpcps.transport.base import Traffic


class Exchange:
    """The mailboxes of all roles of a run."""

    def __init__(self) -> None:
        self._boxes: dict[Peer, deque[tuple[Peer, bytes, bytes | None]]] = {}

    def endpoint(self, owner: Peer) -> InprocTransport:
        """Return the transport of one role."""
        self._boxes[owner] = deque()
        return InprocTransport(owner, self._boxes)


class InprocTransport:
    """One role's end of an `Exchange`: every message goes through its bytes, as on a wire."""

    def __init__(self, owner: Peer, boxes: dict[Peer, deque[tuple[Peer, bytes, bytes | None]]]) -> None:
        self._owner = owner
        self._boxes = boxes
        self.traffic = Traffic()

    def send(self, to: Peer, message: Message) -> None:
        """See `Transport.send`."""
        header = message.header()
        payload = None if message.payload is None or not message.payload.size else message.payload.tobytes()
        self._boxes[to].append((self._owner, header, payload))
        self.traffic.sent += len(header) + message.payload_bytes

    def receive(self) -> Received | Malformed | None:
        """See `Transport.receive`."""
        if not self._boxes[self._owner]:
            return None
        source, header, payload = self._boxes[self._owner].popleft()
        self.traffic.received += len(header) + (len(payload) if payload else 0)
        try:
            values = None if payload is None else np.frombuffer(payload, np.float32)
            return Received(source, Message.decode(header, values))
        except MalformedMessageError as error:
            return Malformed(source, str(error))
