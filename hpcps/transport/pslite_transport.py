"""Messages over ps-lite nodes: a header and its payload are the data frames of one ps-lite message."""

from __future__ import annotations

import struct
from collections import Counter, deque
from collections.abc import Callable, Mapping
from threading import Event

import numpy as np
import zmq

from hpcps.layout import Vector
from hpcps.messages import Malformed, MalformedMessageError, Message, Peer, Received
from hpcps.transport.base import Traffic
from hpcps.transport.pslite.meta import Meta
from hpcps.transport.pslite.node import Delivery, Node

APP = 1
"""The application that our messages are of; 0 is the key-value store's."""
MESSAGE = 1
"""As `head`: a message between roles; its body is its number among those from its sender to its receiver."""

_NUMBER = struct.Struct("<Q")


class PsliteTransport:
    """Carries messages between the roles of nodes.

    Args:
        node: this process's; it has started, and hands what is of `MESSAGE` to `accept`.
        ids: the node of each role.
        look: called where nothing has come; raises what is wrong with the others.
    """

    def __init__(self, node: Node, ids: Mapping[Peer, int], look: Callable[[], None]) -> None:
        self._node = node
        self._look = look
        self._ids = dict(ids)
        self._peers = {id_: peer for peer, id_ in ids.items()}
        self._inbox: deque[Delivery] = deque()
        self._bell = Event()
        self._early: dict[int, dict[int, Delivery]] = {}
        self._expected: Counter[int] = Counter()
        self.sent_to: Counter[int] = Counter()
        self.received_from: Counter[int] = Counter()
        self.traffic = Traffic()

    def send(self, to: Peer, message: Message) -> None:
        """See `Transport.send`. ZeroMQ copies a small payload, and holds on to a large one until the system has it."""
        header, id_ = message.header(), self._ids[to]
        frames: list[object] = [header]
        if message.payload is not None and message.payload.size:
            frames.append(message.payload.data)
        number = _NUMBER.pack(self.sent_to[id_])
        self.sent_to[id_] += 1
        meta = Meta(
            head=MESSAGE, body=number, request=True, push=True, app=APP, customer=0, timestamp=self._node.timestamp()
        )
        self._node.send(id_, meta, frames)
        self.traffic.sent += len(header) + message.payload_bytes

    def receive(self) -> Received | Malformed | None:
        """See `Transport.receive`. A payload is the frame that it came in, read-only, and stays while it is used."""
        if not self._inbox:
            self._look()
            return None
        return self._open(self._inbox.popleft())

    def rest(self, seconds: float) -> None:
        """Pause for so long, or until a message comes."""
        self._bell.wait(seconds)
        self._bell.clear()

    def accept(self, delivery: Delivery) -> None:
        """Take in a message, in the thread that receives.

        One that was lost and sent again comes after later ones: these wait, as what one sender sends stays in order.
        """
        sender = delivery.sender
        if sender not in self._peers or len(delivery.meta.body) != _NUMBER.size:
            self._node.strays.drop("foreign", f"node {sender} plays no role, or does not number its messages")
            return
        (number,) = _NUMBER.unpack(delivery.meta.body)
        early = self._early.setdefault(sender, {})
        if number < self._expected[sender] or number in early:
            self._node.strays.drop("unexpected", f"message {number} of node {sender} came before")
            return
        early[number] = delivery
        while (following := early.pop(self._expected[sender], None)) is not None:
            self._expected[sender] += 1
            self._inbox.append(following)
            self._bell.set()

    def _open(self, delivery: Delivery) -> Received | Malformed:
        source, frames = self._peers[delivery.sender], delivery.data
        self.received_from[delivery.sender] += 1
        self.traffic.received += sum(len(frame) for frame in frames)
        try:
            if not 1 <= len(frames) <= 2:
                raise MalformedMessageError(f"{len(frames)} frames are not a header with or without a payload")
            payload = _floats(frames[1]) if len(frames) == 2 else None
            return Received(source, Message.decode(frames[0].bytes, payload))
        except MalformedMessageError as error:
            return Malformed(source, str(error))


def _floats(frame: zmq.Frame) -> Vector:
    if not len(frame) or len(frame) % 4:
        raise MalformedMessageError(f"its payload of {len(frame)} bytes is not a number of float32")
    values: Vector = np.frombuffer(frame.buffer, np.float32)
    # ZeroMQ leaves a small message where it is in what it read of the stream.
    return values if values.flags.aligned else values.copy()
