"""Messages between the roles of one process."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hpcps.protocol.envelope import Delivered, Envelope, MalformedMessageError
from hpcps.protocol.messages import Peer
from hpcps.protocol.received import Lost, Malformed, Operation, Reduced, Replaced
from hpcps.spec.transport import Transport
from hpcps.transport.base import Arrived, CollectiveTransport, Traffic

Packet = tuple[Peer, bytes, bytes | None] | Reduced | Lost | Replaced
"""Sender, header and payload of a message; the end of a reduction; or what became of another process."""
Carry = Callable[[Peer, Peer, int, Callable[[], None]], None]


def at_once(source: Peer, to: Peer, size: int, arrive: Callable[[], None]) -> None:
    """Deliver a message immediately."""
    arrive()


class InOneProcess(Transport):
    """All roles in one process, deterministic."""

    offers = frozenset({"allreduce", "replacements"})

    kind: Literal["inproc"] = "inproc"


class Exchange:
    """The mailboxes of all roles of a run."""

    def __init__(self, carry: Carry = at_once, scale: float = 1.0) -> None:
        """Create the exchange.

        Args:
            carry: takes sender, receiver, number of bytes, and a function to call when the message arrives.
            scale: a factor on the bytes of payloads that are carried and counted, to simulate a larger model.
        """
        self._boxes: dict[Peer, deque[Packet]] = {}
        self._reduced: dict[Peer, NDArray[Any]] = {}
        self._carry = carry
        self._scale = scale

    def tell(self, to: Peer, event: Lost | Replaced) -> None:
        """Tell a role what became of another process."""
        self._boxes[to].append(event)

    def endpoint(self, owner: Peer) -> InprocTransport:
        """Return the transport of one role, or of its replacement, which gets nothing that was for its predecessor."""
        self._boxes[owner] = deque()
        return InprocTransport(owner, self._boxes, self._reduced, self._carry, self._scale)


class InprocTransport(CollectiveTransport):
    """The end of an `Exchange` for one role; it encodes every message to bytes, as a network transport does."""

    def __init__(
        self,
        owner: Peer,
        boxes: dict[Peer, deque[Packet]],
        reduced: dict[Peer, NDArray[Any]],
        carry: Carry,
        scale: float = 1.0,
    ) -> None:
        self._owner = owner
        self._boxes = boxes
        # The arrays of the reduction under way, until all peers have given theirs.
        self._reduced = reduced
        self._joined: Sequence[Peer] = ()
        self._carry = carry
        self.traffic = Traffic(scale=scale)

    def send(self, to: Peer, envelope: Envelope) -> None:
        header = envelope.header
        payload = None if envelope.payload is None or not envelope.payload.size else envelope.payload.tobytes()
        size = self.traffic.size(header, envelope.payload_bytes)
        self._carry(self._owner, to, size, partial(self._boxes[to].append, (self._owner, header, payload)))
        self.traffic.sent += size

    def join(self, peers: Sequence[Peer]) -> None:
        self._joined = peers

    def reduce(self, values: NDArray[Any], operation: Operation, *, soon: bool = False) -> None:
        self._reduced[self._owner] = values
        self.traffic.sent += values.nbytes
        if len(self._reduced) < len(self._joined):
            return
        combine = np.add if operation == "sum" else np.maximum
        result = reduce(combine, [self._reduced[peer] for peer in self._joined])
        for peer in self._joined:
            array = self._reduced.pop(peer)
            array[...] = result
            self._boxes[peer].append(Reduced(array))

    def receive_from(self, source: Peer) -> Arrived | None:
        """Return the first message that has arrived from one sender, or None; those of others stay."""
        box = self._boxes[self._owner]
        messages = (packet for packet in box if not isinstance(packet, (Reduced, Lost, Replaced)))
        packet = next((packet for packet in messages if packet[0] == source), None)
        if packet is None:
            return None
        box.remove(packet)
        box.appendleft(packet)
        return self.receive()

    @property
    def arrived(self) -> bool:
        """Whether a message waits here."""
        return bool(self._boxes[self._owner])

    def receive(self) -> Arrived | None:
        if not self._boxes[self._owner]:
            return None
        packet = self._boxes[self._owner].popleft()
        if isinstance(packet, Reduced):
            self.traffic.received += packet.values.nbytes
            return packet
        if isinstance(packet, (Lost, Replaced)):
            return packet
        source, header, payload = packet
        self.traffic.received += self.traffic.size(header, len(payload) if payload else 0)
        try:
            values = None if payload is None else np.frombuffer(payload, np.float32)
            return Delivered(source, Envelope.decode(header, values))
        except MalformedMessageError as error:
            return Malformed(source, str(error))
