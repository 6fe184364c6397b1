"""The transport of one of the two processes of a server, which gets the messages of the other one, too."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence

from hpcps.errors import RunError
from hpcps.protocol.envelope import Delivered, Envelope
from hpcps.protocol.messages import Peer
from hpcps.protocol.received import Lost, Malformed, Replaced
from hpcps.protocol.roster import standby_of
from hpcps.transport.base import KeptMessage, StandbyTransport
from hpcps.transport.pslite.node import Node
from hpcps.transport.pslite.transport import ASK, NEW, NUMBER, SWITCHED, PsliteTransport


class PsliteStandby(PsliteTransport, StandbyTransport):
    """The transport of one of the two processes of a server, which may be its standby.

    Args:
        server: the server.
        stands_by: whether it is the standby.
        node: see `PsliteTransport`.
        ids: see `PsliteTransport`.
        check: see `PsliteTransport`.
        incarnation: see `PsliteTransport`.

    Attributes:
        stands_by: whether it is the standby, or has been.
    """

    def __init__(
        self, server: Peer, stands_by: bool, node: Node, ids: Mapping[Peer, int], check: Callable[[], None],
        incarnation: int,
    ) -> None:  # fmt: skip
        super().__init__(node, ids, check, incarnation)
        self._server, self._both = server, self._nodes[server]
        self.sit(stands_by=stands_by)
        self._leads = False
        self._kept: dict[Peer, deque[KeptMessage]] = {}
        self._counts: Counter[Peer] = Counter()
        self._first: Counter[Peer] = Counter()
        # How many messages of the server have come to each node; the nodes that take this process for the server, with
        # the number of the next message to each; and those that have not switched yet when another node should.
        self._taken: Counter[int] = Counter()
        self._switched: dict[int, int] = {}
        self._too_early: dict[int, tuple[int, bytes]] = {}
        # The roles of whose new processes the server has not heard, and the number of the first message since: those
        # before are for processes that are lost.
        self._outdated: dict[Peer, int] = {}
        self._lacking: Peer | None = None
        # How many messages of this process have come to each node, or were for its predecessors; how many it was last
        # asked for.
        self._got: Counter[int] = Counter()
        self._asked_for: Counter[int] = Counter()

    def sit(self, *, stands_by: bool) -> None:
        """Be the standby, or the server; a message of the standby to the server is not for itself."""
        self.stands_by = stands_by
        self._nodes[self._server] = self._both[:1] if stands_by else self._both

    def begin(
        self, sent: Mapping[Peer, int], kept: Mapping[Peer, Sequence[KeptMessage]], known: Mapping[Peer, int]
    ) -> None:
        with self._lock:
            for peer, number in known.items():
                if number == self._incarnations[self._ids[peer]]:
                    self._outdated.pop(peer, None)
            self._counts.update(sent)
            # What is kept for others is for their new processes, which the server's transport knows, too.
            for peer in self._outdated:
                self._outdated[peer] = kept[peer][0][0] if kept.get(peer) else self._counts[peer]
            self._kept = {to: deque(messages) for to, messages in kept.items()}
            self._first.update({to: kept[to][0][0] if kept.get(to) else count for to, count in sent.items()})

    @property
    def kept(self) -> Mapping[Peer, Sequence[KeptMessage]] | None:
        with self._lock:
            if not self._all_got():
                return None
            needed = {
                to: tuple(each for each in kept if each[0] >= self._outdated.get(to, 0))
                for to, kept in self._kept.items()
            }
            return {to: kept for to, kept in needed.items() if kept}

    def _all_got(self) -> bool:
        """Return whether all that was sent has come to the processes that live; ask those that have not said so."""
        own = {self._node.id, *self._nodes[standby_of(self._server)]}
        living = {id_ for peer, nodes in self._nodes.items() if peer not in self._gone for id_ in nodes} - own
        lacking = {id_ for id_ in living if self._got[id_] < self.sent_to[id_]}
        for id_ in sorted(lacking):
            if self._asked_for[id_] < self.sent_to[id_]:
                self._asked_for[id_] = self.sent_to[id_]
                self._tell_count(id_, ASK, self.sent_to[id_])
        return not lacking

    def note_got(self, sender: int, body: bytes) -> None:
        """Note that so many messages of this process have come to another node, in the receiving thread."""
        if len(body) == NUMBER.size:
            count, incarnation = NUMBER.unpack(body)
            if incarnation == self._incarnations[sender]:
                with self._lock:
                    self._got[sender] = max(self._got[sender], count)
                self._arrived.set()

    def keep(self, to: Peer, envelope: Envelope) -> None:
        with self._lock:
            kept = self._kept.setdefault(to, deque())
            kept.append((self._counts[to], envelope))
            self._counts[to] += 1
            self._flush(to)

    def forget(self, to: Peer) -> None:
        with self._lock:
            # Another role may have known the new process earlier, and have the server send to it.
            first, kept = self._outdated.pop(to, 0), self._kept.get(to, deque())
            while kept and kept[0][0] < first:
                kept.popleft()
            self._first.pop(to, None)
            self._flush(to)

    def take_over(self) -> None:
        with self._lock:
            self._leads = True
            for to in list(self._kept):
                self._flush(to)

    def send(self, to: Peer, envelope: Envelope) -> None:
        if self._leads and to != standby_of(self._server):
            self.keep(to, envelope)
            self.traffic.sent += len(envelope.header) + envelope.payload_bytes
        else:
            super().send(to, envelope)

    def receive(self) -> Delivered | Malformed | Lost | Replaced | None:
        if self._lacking is not None and self._leads:
            raise RunError(
                f"{self._server} is lost, and {self._lacking} lacks messages that its new standby does not have: start "
                "the run again; it goes on"
            )
        return super().receive()

    def replace(self, peer: Peer, incarnation: int, *, tell: bool) -> None:
        with self._lock:
            self._outdated[peer] = self._counts[peer]
        super().replace(peer, incarnation, tell=tell)
        self._welcome(self._ids[peer])

    def seat(self, seats: Mapping[Peer, tuple[int, ...]]) -> None:
        super().seat({**seats, self._server: seats[self._server][:1]})

    def add_standby(self, server: Peer, node: int, incarnation: int) -> None:
        super().add_standby(server, node, incarnation)
        self._welcome(node)

    def _welcome(self, node: int) -> None:
        """Begin anew with the process of a node."""
        with self._lock:
            self._taken.pop(node, None)
            self._switched.pop(node, None)
            self._got[node] = self.sent_to[node]
        if node in self._too_early:
            self.note_taken(node, *self._too_early.pop(node))

    def note_taken(self, sender: int, head: int, body: bytes) -> None:
        """Note how many messages of the server have come to another node, in the receiving thread."""
        if not self.stands_by or len(body) != NUMBER.size:
            return
        count, incarnation = NUMBER.unpack(body)
        if incarnation != self._incarnations[sender]:
            if incarnation > self._incarnations[sender] and head == SWITCHED:
                self._too_early[sender] = head, body
            return
        with self._lock:
            if head == SWITCHED:
                self._switched[sender] = 0 if count == NEW else count
                if count != NEW and any(count < self._first[to] for to, ids in self._nodes.items() if sender in ids):
                    self._lacking = self._peers[sender]
            if count != NEW:
                self._taken[sender] = max(self._taken[sender], count)
            for to, nodes in self._nodes.items():
                if sender in nodes:
                    self._flush(to)

    def retire_server(self, event: Lost) -> None:
        """Take nothing more from the server, which is lost, in the receiving thread."""
        lost = self.acting(self._server)
        self._retired.add(lost)
        own = self._node.id
        self._nodes[self._server] = (own,)
        self._peers[own] = self._server
        self._nodes[standby_of(self._server)] = ()
        self.tell(event)

    def _flush(self, to: Peer) -> None:
        """Send what a role lacks, if this process is the server; and drop what it has got."""
        if to in self._outdated:
            return
        nodes, kept = self._nodes[to], self._kept.get(to, deque())
        for id_ in nodes if self._leads else ():
            if id_ not in self._switched:
                continue
            for number, envelope in kept:
                if number >= self._switched[id_]:
                    self._send_to(id_, number, envelope)
                    self._switched[id_] = number + 1
        got = min((max(self._taken[id_], self._switched.get(id_, 0)) for id_ in nodes), default=0)
        while kept and kept[0][0] < got:
            kept.popleft()
