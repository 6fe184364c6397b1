"""Messages between the roles of one process."""

from __future__ import annotations

from collections import Counter, deque
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

Packet = tuple[Peer, int, bytes, bytes | None] | Reduced | Lost | Replaced
"""Sender, the number of its process, header and payload of a message; the end of a reduction; or what became of another
process."""
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
        self._ends: dict[Peer, InprocTransport] = {}
        self._reduced: dict[Peer, NDArray[Any]] = {}
        self._carry = carry
        self._scale = scale

    def tell(self, to: Peer, event: Lost | Replaced) -> None:
        """Tell a role what became of another process."""
        self._boxes[to].append(event)

    def endpoint(self, owner: Peer) -> InprocTransport:
        """Return the transport of one role, or of its replacement.

        A replacement gets nothing that was sent before, and what its predecessor has sent does not arrive any more.
        """
        skipped, number = {}, 0
        if owner in self._ends:
            self._ends[owner].replaced = True
            skipped = {(source, end.number): end.sent_to[owner] for source, end in self._ends.items()}
            number = self._ends[owner].number + 1
        self._boxes[owner] = deque()
        end = InprocTransport(owner, self._boxes, self._reduced, self._carry, self._scale, skipped, number)
        self._ends[owner] = end
        return end


class InprocTransport(CollectiveTransport):
    """The end of an `Exchange` for one role; it encodes every message to bytes, as a network transport does.

    Attributes:
        sent_to: the number of messages to each role.
        number: the number of processes that had the role before this one.
        replaced: whether another process has taken the place of this one.
    """

    def __init__(
        self,
        owner: Peer,
        boxes: dict[Peer, deque[Packet]],
        reduced: dict[Peer, NDArray[Any]],
        carry: Carry,
        scale: float,
        skipped: dict[tuple[Peer, int], int],
        number: int,
    ) -> None:
        """Create the end of a role.

        Args:
            owner: the role.
            boxes: what has arrived for each role.
            reduced: the arrays of the reduction under way.
            carry: see `Exchange`.
            scale: see `Exchange`.
            skipped: the number of messages of each process, a role and a number, that went to predecessors of this
                process, if it is a replacement; the first message of each states it.
            number: the number of processes that had this role before.
        """
        self._owner = owner
        self._boxes = boxes
        # The arrays of the reduction under way, until all peers have given theirs.
        self._reduced = reduced
        self._joined: Sequence[Peer] = ()
        self._carry = carry
        self._skipped = skipped
        self.number = number
        self.sent_to: Counter[Peer] = Counter()
        self.replaced = False
        self.traffic = Traffic(scale=scale)

    def send(self, to: Peer, envelope: Envelope) -> None:
        header = envelope.header
        payload = payload_of(envelope)
        size = self.traffic.size(header, envelope.payload_bytes)
        self._carry(
            self._owner, to, size, partial(self._arrive, self._boxes[to], (self._owner, self.number, header, payload))
        )
        self.sent_to[to] += 1
        self.traffic.sent += size

    def _arrive(self, box: deque[Packet], packet: Packet) -> None:
        if not self.replaced:
            box.append(packet)

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

    def receive(self) -> Arrived | None:
        if not self._boxes[self._owner]:
            return None
        packet = self._boxes[self._owner].popleft()
        if isinstance(packet, Reduced):
            self.traffic.received += packet.values.nbytes
            return packet
        if isinstance(packet, (Lost, Replaced)):
            return packet
        source, number, header, payload = packet
        self.traffic.received += self.traffic.size(header, len(payload) if payload else 0)
        return delivered(source, header, payload, self._skipped.pop((source, number), None))


def payload_of(envelope: Envelope) -> bytes | None:
    """Return the bytes of the payload; None if there are none."""
    return None if envelope.payload is None or not envelope.payload.size else envelope.payload.tobytes()


def delivered(source: Peer, header: bytes, payload: bytes | None, skipped: int | None = None) -> Delivered | Malformed:
    """Decode a message that has come from a role."""
    try:
        values = None if payload is None else np.frombuffer(payload, np.float32)
        return Delivered(source, Envelope.decode(header, values), skipped)
    except MalformedMessageError as error:
        return Malformed(source, str(error))
