"""Messages between the roles of one process."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hpcps.protocol.envelope import Delivered, Envelope, MalformedMessageError
from hpcps.protocol.messages import Peer
from hpcps.protocol.received import Lost, Malformed, Operation, Reduced, Replaced
from hpcps.protocol.roster import STANDBY, standby_of
from hpcps.spec.transport import Transport
from hpcps.transport.base import Arrived, CollectiveTransport, KeptMessage, StandbyTransport, Traffic

Packet = tuple[Peer, int, int, bytes, bytes | None] | Reduced | Lost | Replaced
"""Sender, the number of its process, how many messages this one sent to the receiver before, header and payload of a
message; the end of a reduction; or what became of another process."""
Carry = Callable[[Peer, Peer, int, Callable[[], None]], None]


def at_once(source: Peer, to: Peer, size: int, arrive: Callable[[], None]) -> None:
    """Deliver a message immediately."""
    arrive()


class InOneProcess(Transport):
    """All roles in one process, deterministic."""

    offers = frozenset({"allreduce", "replacements"})

    kind: Literal["inproc"] = "inproc"


@dataclass(frozen=True)
class _Shared:
    """What the ends of an `Exchange` share.

    Attributes:
        carry: see `Exchange`.
        scale: see `Exchange`.
        boxes: what has arrived for each role.
        reduced: the arrays of the reduction under way, until all peers have given theirs.
        standbys: the end of the standby of each server that has one.
    """

    carry: Carry
    scale: float
    boxes: dict[Peer, deque[Packet]] = field(default_factory=dict)
    reduced: dict[Peer, NDArray[Any]] = field(default_factory=dict)
    standbys: dict[Peer, InprocStandby] = field(default_factory=dict)


class Exchange:
    """The mailboxes of all roles of a run."""

    def __init__(self, carry: Carry = at_once, scale: float = 1.0) -> None:
        """Create the exchange.

        Args:
            carry: takes sender, receiver, number of bytes, and a function to call when the message arrives.
            scale: a factor on the bytes of payloads that are carried and counted, to simulate a larger model.
        """
        self._shared = _Shared(carry, scale)
        self._boxes, self._standbys = self._shared.boxes, self._shared.standbys
        self._ends: dict[Peer, InprocTransport] = {}
        # How many messages of each end had been sent to a server when its standby began.
        self._before: dict[Peer, dict[InprocTransport, int]] = {}

    def tell(self, to: Peer, event: Lost | Replaced) -> None:
        """Tell a role, or the standby of a server, what became of another process."""
        is_standby = isinstance(event, Lost) and event.peer.role == STANDBY
        if is_standby and (end := self._standbys.pop(to, None)) is not None:
            end.replaced = True
        self._boxes[to].append(event)

    def goes_to_both(self, server: Peer) -> bool:
        """Return whether all messages to a server that did not go to its new standby, too, have arrived."""
        before = self._before[server]
        return all(end.replaced or end.next_to(server) >= before.get(end, 0) for end in self._ends.values())

    def succeed(self, event: Lost) -> None:
        """Let the standby of a lost server take its place: what is sent to the server goes to it alone."""
        server = event.peer
        self._ends[server].replaced = True
        self._boxes[server] = self._boxes.pop(standby_of(server))
        self._ends[server] = end = self._standbys.pop(server)
        end.succeed()
        self._boxes[server].append(event)

    def endpoint(self, owner: Peer) -> InprocTransport:
        """Return the transport of one role, or of its replacement.

        A replacement gets nothing that was sent before, and what its predecessor has sent does not arrive any more.
        """
        older, number = set(), 0
        if owner in self._ends:
            self._ends[owner].replaced = True
            older = self._members()
            number = self._ends[owner].number + 1
        self._boxes[owner] = deque()
        self._begin(owner, owner)
        self._ends[owner] = end = InprocTransport(owner, self._shared, older, number)
        return end

    def standby(self, server: Peer) -> InprocStandby:
        """Return the transport of the standby of a server, to which messages to the server go, too, from now on."""
        owner = standby_of(server)
        self._boxes[owner] = deque()
        older = self._members() if server in self._before else set()
        self._standbys[server] = end = InprocStandby(owner, self._shared, older, self._ends[server])
        self._before[server] = {other: other.sent_to[server] for other in self._ends.values()}
        self._begin(owner, server)
        return end

    def _begin(self, owner: Peer, role: Peer) -> None:
        """Note which message of each role is the first one of a process that gets those to a role."""
        for other in self._ends.values():
            other.arrived[id(self._boxes[owner])] = other.sent_to[role]

    def _members(self) -> set[tuple[Peer, int]]:
        """Return the processes that there are: their roles, and their numbers."""
        return {(peer, end.number) for peer, end in self._ends.items()}


class InprocTransport(CollectiveTransport):
    """The end of an `Exchange` for one role; it encodes every message to bytes, as a network transport does.

    Attributes:
        owner: the role.
        sent_to: the number of messages to each role.
        arrived: for each box of a receiver, by its `id`: the number of the next message to arrive there.
        number: the number of processes that had the role before this one.
        replaced: whether another process has taken the place of this one.
    """

    def __init__(self, owner: Peer, shared: _Shared, older: set[tuple[Peer, int]], number: int) -> None:
        """Create the end of a role.

        Args:
            owner: the role.
            shared: what all ends share.
            older: the processes that may have sent messages to predecessors of this one; the first message of each
                states how many.
            number: the number of processes that had this role before.
        """
        self.owner = owner
        self._shared = shared
        self._boxes = shared.boxes
        self._joined: Sequence[Peer] = ()
        self._older = older
        self.number = number
        self.sent_to: Counter[Peer] = Counter()
        self.arrived: Counter[int] = Counter()
        self.replaced = False
        self.traffic = Traffic(scale=shared.scale)

    def send(self, to: Peer, envelope: Envelope) -> None:
        for receiver in self._receivers(to):
            self._send_to(receiver, self.sent_to[to], envelope)
        self.sent_to[to] += 1
        self.traffic.sent += self.traffic.size(envelope.header, envelope.payload_bytes)

    def _send_to(self, receiver: Peer, count: int, envelope: Envelope) -> None:
        """Send the message of a number to a role, or to the standby of a server."""
        packet = (self.owner, self.number, count, envelope.header, payload_of(envelope))
        size = self.traffic.size(envelope.header, envelope.payload_bytes)
        self._shared.carry(self.owner, receiver, size, partial(self._arrive, self._boxes[receiver], packet))

    def next_to(self, receiver: Peer) -> int:
        """Return the number of the next message to arrive at a receiver."""
        return self.arrived[id(self._boxes[receiver])]

    def _receivers(self, to: Peer) -> tuple[Peer, ...]:
        """Return those that get a message to a role: its standby does, too."""
        return (to, standby_of(to)) if to in self._shared.standbys else (to,)

    def _arrive(self, box: deque[Packet], packet: tuple[Peer, int, int, bytes, bytes | None]) -> None:
        if not self.replaced:
            box.append(packet)
            self.arrived[id(box)] = packet[2] + 1

    def join(self, peers: Sequence[Peer]) -> None:
        self._joined = peers

    def reduce(self, values: NDArray[Any], operation: Operation, *, soon: bool = False) -> None:
        reduced = self._shared.reduced
        reduced[self.owner] = values
        self.traffic.sent += values.nbytes
        if len(reduced) < len(self._joined):
            return
        combine = np.add if operation == "sum" else np.maximum
        result = reduce(combine, [reduced[peer] for peer in self._joined])
        for peer in self._joined:
            array = reduced.pop(peer)
            array[...] = result
            self._boxes[peer].append(Reduced(array))

    def receive(self) -> Arrived | None:
        if not self._boxes[self.owner]:
            return None
        packet = self._boxes[self.owner].popleft()
        if isinstance(packet, Reduced):
            self.traffic.received += packet.values.nbytes
            return packet
        if isinstance(packet, (Lost, Replaced)):
            return packet
        source, number, count, header, payload = packet
        self.traffic.received += self.traffic.size(header, len(payload) if payload else 0)
        first = (source, number) in self._older
        self._older.discard((source, number))
        return delivered(source, header, payload, count if first else None)


class InprocStandby(InprocTransport, StandbyTransport):
    """The end of the standby of a server."""

    def __init__(
        self, owner: Peer, shared: _Shared, older: set[tuple[Peer, int]], server: InprocTransport
    ) -> None:  # fmt: skip
        """Create the end; see `InprocTransport`. `server` is the end of the server."""
        super().__init__(owner, shared, older, server.number)
        self._server = server
        self._kept: dict[Peer, deque[KeptMessage]] = {}
        self._counts: Counter[Peer] = Counter()

    def begin(
        self, sent: Mapping[Peer, int], kept: Mapping[Peer, Sequence[KeptMessage]], known: Mapping[Peer, int]
    ) -> None:
        self._counts.update(sent)
        self._kept = {to: deque(messages) for to, messages in kept.items()}

    @property
    def kept(self) -> Mapping[Peer, Sequence[KeptMessage]]:
        return {}  # what has not arrived is on its way, also when its sender is lost

    def keep(self, to: Peer, envelope: Envelope) -> None:
        kept = self._kept.setdefault(to, deque())
        kept.append((self._counts[to], envelope))
        self._counts[to] += 1
        got = min(self._server.next_to(receiver) for receiver in self._receivers(to))
        while kept and kept[0][0] < got:
            kept.popleft()

    def forget(self, to: Peer) -> None:
        self._kept.pop(to, None)

    def succeed(self) -> None:
        """Be the server, whose messages that have not arrived are sent again in `take_over`."""
        self.owner, self.arrived = self._server.owner, Counter(self._server.arrived)
        self.sent_to = Counter({to: self.next_to(to) for to in self._counts if to in self._boxes})

    def take_over(self) -> None:
        self.sent_to = Counter(self._counts)
        for to, kept in self._kept.items():
            for receiver in self._receivers(to):
                first = self.next_to(receiver)
                for count, envelope in kept:
                    if count >= first:
                        self._send_to(receiver, count, envelope)

    def _receivers(self, to: Peer) -> tuple[Peer, ...]:
        return (to,) if to == self._server.owner else super()._receivers(to)


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
