"""Messages over ps-lite nodes: a ps-lite message has the header and the payload as its data frames."""

from __future__ import annotations

import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from threading import Event

import numpy as np

from hpcps.numerics.layout import Vector
from hpcps.protocol.envelope import Delivered, Envelope, MalformedMessageError
from hpcps.protocol.messages import Peer
from hpcps.protocol.received import Lost, Malformed, Replaced
from hpcps.transport.base import MessageTransport, Traffic
from hpcps.transport.pslite.incoming import Frame
from hpcps.transport.pslite.meta import Meta
from hpcps.transport.pslite.node import Node
from hpcps.transport.pslite.receiver import Delivery
from hpcps.transport.pslite.sender import Receipt

APP = 1
"""The application id of our messages; 0 is the key-value store."""
MESSAGE = 1
"""As `head`: a message between roles; its body is its sequence number from this sender to this receiver, and the number
of the replacement that the sender is, or 0."""

_NUMBER = struct.Struct("<QI")


class PsliteTransport(MessageTransport):
    """Transports messages between the roles of nodes.

    Args:
        node: the node of this process; it has started, and passes messages with the head `MESSAGE` to `accept`.
        ids: the node id of each role.
        check: called when no message has arrived; raises an error if another process is lost.
        incarnation: the number of the replacement that this process is. Others may have sent messages to its
            predecessor, which are not repeated.
    """

    def __init__(self, node: Node, ids: Mapping[Peer, int], check: Callable[[], None], incarnation: int = 0) -> None:
        self._node = node
        self._check = check
        self._ids = dict(ids)
        self._peers = {id_: peer for peer, id_ in ids.items()}
        self.incarnation = incarnation
        self._incarnations: Counter[int] = Counter()
        # With the first message of a sender: how many went to a predecessor of this process.
        self._inbox: deque[tuple[Delivery, int | None] | Lost | Replaced] = deque()
        self._gone: set[Peer] = set()
        self._arrived = Event()
        self._early: dict[int, dict[int, Delivery]] = {}
        self._expected: Counter[int] = Counter()
        self.sent_to: Counter[int] = Counter()
        self.received_from: Counter[int] = Counter()
        # The large messages that ZeroMQ may not have written to its sockets, and their bytes.
        self._sending: list[tuple[Receipt, int]] = []
        self.traffic = Traffic()

    @property
    def unsent(self) -> int:
        self._sending = [each for each in self._sending if not each[0].done]
        return sum(size for _, size in self._sending)

    def send(self, to: Peer, envelope: Envelope) -> None:
        # ZeroMQ copies a small payload, and refers to a large one until it is sent.
        header, id_ = envelope.header, self._ids[to]
        frames: list[object] = [header]
        if envelope.payload is not None and envelope.payload.size:
            frames.append(envelope.payload.data)
        number = _NUMBER.pack(self.sent_to[id_], self.incarnation)
        self.sent_to[id_] += 1
        meta = Meta(
            head=MESSAGE, body=number, request=True, push=True, app=APP, customer=0, timestamp=self._node.timestamp()
        )
        receipt = self._node.send(id_, meta, frames)
        if not receipt.done:
            self._sending = [each for each in self._sending if not each[0].done]
            self._sending.append((receipt, envelope.payload_bytes))
        self.traffic.sent += len(header) + envelope.payload_bytes

    def receive(self) -> Delivered | Malformed | Lost | Replaced | None:
        # A payload is a read-only view of its frame, valid while it is referenced.
        if not self._inbox:
            self._check()
            return None
        first = self._inbox.popleft()
        return first if isinstance(first, (Lost, Replaced)) else self._open(*first)

    def rest(self, seconds: float) -> None:
        """Sleep for `seconds`, or until a message arrives."""
        self._arrived.wait(seconds)
        self._arrived.clear()

    def accept(self, delivery: Delivery) -> None:
        """Accept a message, in the receiving thread.

        A message that was lost and sent again arrives after later ones. The later ones wait, because the messages of
        one sender stay in order.
        """
        sender = delivery.sender
        if sender not in self._peers or len(delivery.meta.body) != _NUMBER.size:
            self._node.dropped.drop("foreign", f"node {sender} has no role, or does not number its messages")
            return
        number, incarnation = _NUMBER.unpack(delivery.meta.body)
        if incarnation != self._incarnations[sender]:
            self._node.dropped.drop("unexpected", f"message {number} of a predecessor of node {sender}")
            return
        skipped = None
        if self.incarnation and sender not in self._expected:
            self._expected[sender] = skipped = number
        early = self._early.setdefault(sender, {})
        if number < self._expected[sender] or number in early:
            self._node.dropped.drop("unexpected", f"message {number} of node {sender} has arrived before")
            return
        early[number] = delivery
        while (following := early.pop(self._expected[sender], None)) is not None:
            self._expected[sender] += 1
            self._inbox.append((following, skipped))
            skipped = None
            self._arrived.set()

    def lose(self, event: Lost, *, tell: bool) -> None:
        """Note that a process is lost, in the receiving thread; `tell` says whether the role is to know it."""
        self._gone.add(event.peer)
        if tell:
            self.tell(event)

    def replace(self, peer: Peer, incarnation: int, *, tell: bool) -> None:
        """Expect the messages of a replacement from the first one on, in the receiving thread.

        If this process is a replacement itself, the other one may have sent some to its predecessor, as `accept` notes.
        """
        if peer not in self._gone and tell:  # its predecessor was replaced as soon as it was dead
            self.tell(Lost(peer, "another process has replaced it", time.monotonic()))
        self._gone.discard(peer)
        id_ = self._ids[peer]
        self._early.pop(id_, None)
        if not self.incarnation or id_ in self._expected:
            self._expected[id_] = 0
        self._incarnations[id_] = incarnation

    def tell(self, event: Lost | Replaced) -> None:
        """Pass to the role what has become of another process."""
        self._inbox.append(event)
        self._arrived.set()

    def _open(self, delivery: Delivery, skipped: int | None) -> Delivered | Malformed:
        source, frames = self._peers[delivery.sender], delivery.data
        self.received_from[delivery.sender] += 1
        self.traffic.received += sum(len(frame) for frame in frames)
        try:
            if not 1 <= len(frames) <= 2:
                raise MalformedMessageError(f"{len(frames)} frames are not a header with or without a payload")
            payload = _floats(frames[1]) if len(frames) == 2 else None
            return Delivered(source, Envelope.decode(frames[0].tobytes(), payload), skipped)
        except MalformedMessageError as error:
            return Malformed(source, str(error))


def _floats(frame: Frame) -> Vector:
    if not frame.size or frame.size % 4:
        raise MalformedMessageError(f"its payload of {frame.size} bytes is not a number of float32")
    values: Vector = frame.view(np.float32)
    values.flags.writeable = False
    return values
