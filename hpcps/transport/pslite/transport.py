"""Messages over ps-lite nodes: a ps-lite message has the header and the payload as its data frames."""

from __future__ import annotations

import struct
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from threading import Event, Lock

import numpy as np

from hpcps.numerics.layout import Vector
from hpcps.protocol.envelope import Delivered, Envelope, MalformedMessageError
from hpcps.protocol.messages import Peer
from hpcps.protocol.received import REPLACED, Lost, Malformed, Replaced
from hpcps.protocol.roster import standby_of
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

TAKEN, SWITCHED = 8, 9
"""As `head`: to the standby of a server: how many messages of the server have come, of all; from now on, this process
takes those of the standby for the server's. The body is as that of a message."""

NUMBER = struct.Struct("<QI")
ASK, GOT = 11, 12
"""As `head`: a server wants to know when so many of its messages have come to another process; the answer, with this
number. The body is as that of a message."""
_TAKEN_EVERY = 64
_CONFIRM = 0.01
NEW = (1 << 64) - 1
"""As the number of a `SWITCHED`: a new process, which has got no message of the server."""


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
        # The nodes that get the messages to each role: that of a server, and that of its standby.
        self._nodes = {peer: (id_, *_standby_of(peer, ids)) for peer, id_ in ids.items()}
        self._lock = Lock()
        # The nodes of servers that are lost, and the numbers of messages until which each is confirmed to a standby.
        self._retired: set[int] = set()
        self._confirmed: Counter[int] = Counter()
        # The servers that have asked, and for how many messages.
        self._asked: dict[int, int] = {}
        self._peers = {id_: peer for peer, id_ in ids.items()}
        self.incarnation = incarnation
        self._incarnations: Counter[int] = Counter()
        # The role of the sender, as it was then; with its first message: how many went to predecessors of this process.
        self._inbox: deque[tuple[Peer, Delivery, int | None] | Lost | Replaced] = deque()
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
        with self._lock:
            for id_ in self._nodes[to]:
                self._send_to(id_, self.sent_to[id_], envelope)
        self.traffic.sent += len(envelope.header) + envelope.payload_bytes

    def _send_to(self, id_: int, count: int, envelope: Envelope) -> None:
        """Send a message with its number."""
        # ZeroMQ copies a small payload, and refers to a large one until it is sent.
        frames: list[object] = [envelope.header]
        if envelope.payload is not None and envelope.payload.size:
            frames.append(envelope.payload.data)
        number, now = NUMBER.pack(count, self.incarnation), self._node.timestamp()
        self.sent_to[id_] = count + 1
        meta = Meta(head=MESSAGE, body=number, request=True, push=True, app=APP, customer=0, timestamp=now)
        receipt = self._node.send(id_, meta, frames)
        if not receipt.done:
            self._sending = [each for each in self._sending if not each[0].done]
            self._sending.append((receipt, envelope.payload_bytes))

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
        if sender not in self._peers or len(delivery.meta.body) != NUMBER.size:
            self._node.dropped.drop("foreign", f"node {sender} has no role, or does not number its messages")
            return
        if sender in self._retired:
            self._node.dropped.drop("unexpected", f"a message of node {sender}, whose standby has its place")
            return
        number, incarnation = NUMBER.unpack(delivery.meta.body)
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
            self._inbox.append((self._peers[sender], following, skipped))
            skipped = None
            self._arrived.set()
            if self._expected[sender] % _TAKEN_EVERY == 0 or self._expected[sender] < self._confirmed[sender]:
                self._confirm_to_standby(sender)
        self._answer(sender)

    def note_asked(self, sender: int, body: bytes) -> None:
        """Answer a server once so many of its messages have come, in the receiving thread."""
        if len(body) == NUMBER.size:
            self._asked[sender], _ = NUMBER.unpack(body)
            self._answer(sender)

    def _answer(self, sender: int) -> None:
        if sender in self._asked and self._expected[sender] >= self._asked[sender]:
            self._tell_count(sender, GOT, self._asked.pop(sender))

    def _confirm_to_standby(self, node: int) -> None:
        """Tell the standby of a server what need not be kept."""
        server = self._peers[node]
        for standby in self._nodes[server][1:] if server.role == "server" else ():
            self._tell_count(standby, TAKEN, self._expected[node])

    def _tell_count(self, node: int, head: int, count: int) -> None:
        body = NUMBER.pack(count, self.incarnation)
        meta = Meta(head=head, body=body, request=True, app=APP, customer=0, timestamp=self._node.timestamp())
        self._node.send(node, meta)

    def acting(self, server: Peer) -> int:
        """Return the node that is a server now."""
        return self._nodes[server][0]

    def incarnation_of(self, node: int) -> int:
        """Return the number of the process of a node, as far as this process knows."""
        return self._incarnations[node]

    def note_incarnation(self, node: int, incarnation: int) -> None:
        """Take the messages of this process of a node only, in the receiving thread."""
        self._incarnations[node] = incarnation

    def seat(self, seats: Mapping[Peer, tuple[int, ...]]) -> None:
        """Take up the nodes that are servers now, and those of their standbys, in the receiving thread."""
        for server, nodes in seats.items():
            self._peers[nodes[0]] = server
            self._nodes[server], self._nodes[standby_of(server)] = nodes, nodes[1:]
            for standby in nodes[1:]:
                self._peers[standby] = standby_of(server)
            if nodes[0] != self._node.id:
                self._tell_count(nodes[0], SWITCHED, NEW)
        # The role has not begun. What has come before was taken for messages of standbys, if they are servers now.
        self._inbox = deque(
            each if isinstance(each, (Lost, Replaced)) else (self._peers[each[1].sender], *each[1:])
            for each in self._inbox
        )

    def add_standby(self, server: Peer, node: int, incarnation: int) -> None:
        """Send messages to a server to a new standby, too, in the receiving thread."""
        acting = self.acting(server)
        self._early.pop(node, None)
        self._asked.pop(node, None)
        self._retired.discard(node)
        self._peers[node] = standby_of(server)
        self._expected[node], self._incarnations[node] = 0, incarnation
        with self._lock:
            # Its messages have the numbers of those to the server, also if it takes the place before it gets any.
            self.sent_to[node] = self.sent_to[acting]
            self._nodes[server], self._nodes[standby_of(server)] = (acting, node), (node,)
        self._confirmed[acting] = self._expected[acting] + _TAKEN_EVERY
        self._tell_count(node, TAKEN, self._expected[acting])

    def lose_standby(self, server: Peer, node: int) -> bool:
        """Send messages to the server alone, in the receiving thread; return whether the node was its standby."""
        with self._lock:
            there = node in self._nodes[server][1:]
            if there:
                self._nodes[server], self._nodes[standby_of(server)] = self._nodes[server][:1], ()
        return there

    def switch(self, server: Peer) -> None:
        """Take the standby of a lost server for the server, in the receiving thread; without one, nothing."""
        lost, *standbys = self._nodes[server]
        self._retired.add(lost)
        self._early.pop(lost, None)
        for standby in standbys:
            self._peers[standby] = server
            # A new process, which has got nothing of the server, takes the first message, whatever its number.
            new = self.incarnation and lost not in self._expected
            if new:
                self._expected.pop(standby, None)
            else:
                self._expected[standby] = self._expected[lost]
            with self._lock:
                self._nodes[server], self._nodes[standby_of(server)] = (standby,), ()
            self._tell_count(standby, SWITCHED, NEW if new else self._expected[lost])

    def confirm(self) -> None:
        while (confirmed := self._node.confirmed()) is not None:
            while not confirmed.wait(_CONFIRM):
                self._node.check()
                self._check()

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
            self.tell(Lost(peer, REPLACED, time.monotonic(), incarnation=incarnation - 1))
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

    def _open(self, source: Peer, delivery: Delivery, skipped: int | None) -> Delivered | Malformed:
        frames = delivery.data
        self.received_from[delivery.sender] += 1
        self.traffic.received += sum(len(frame) for frame in frames)
        try:
            if not 1 <= len(frames) <= 2:
                raise MalformedMessageError(f"{len(frames)} frames are not a header with or without a payload")
            payload = _floats(frames[1]) if len(frames) == 2 else None
            number = None if source.role == "server" else NUMBER.unpack(delivery.meta.body)[1]
            return Delivered(source, Envelope.decode(frames[0].tobytes(), payload), skipped, number)
        except MalformedMessageError as error:
            return Malformed(source, str(error))


def _standby_of(peer: Peer, ids: Mapping[Peer, int]) -> tuple[int, ...]:
    """Return the node of the standby of a server, if there is one."""
    standby = ids.get(standby_of(peer)) if peer.role == "server" else None
    return () if standby is None else (standby,)


def _floats(frame: Frame) -> Vector:
    if not frame.size or frame.size % 4:
        raise MalformedMessageError(f"its payload of {frame.size} bytes is not a number of float32")
    values: Vector = frame.view(np.float32)
    values.flags.writeable = False
    return values
