"""Which of the two processes of a server is the server now, and which one is its standby.

The scheduler has a table of all servers, and gives it to each replacement that joins. The other processes follow what
it says of processes that are lost, and of new ones.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping

from hpcps.protocol.messages import Peer
from hpcps.protocol.received import REPLACED, Lost, Replaced
from hpcps.protocol.roster import STANDBY, standby_of
from hpcps.transport.pslite.membership import NodeDeath
from hpcps.transport.pslite.meta import SCHEDULER_ID, Meta, NodeInfo
from hpcps.transport.pslite.node import Node
from hpcps.transport.pslite.standby import PsliteStandby
from hpcps.transport.pslite.transport import APP, PsliteTransport

DOUBLED = 10
"""As `head`, to a server: from now on its new standby gets the messages of this process, too. The body is the node of
the standby, and the number of its process."""

_MEMBER = struct.Struct("<II")


def server_of(peer: Peer) -> Peer | None:
    """Return the server that a process is, or for which it stands by; None for other roles."""
    return Peer("server", peer.index) if peer.role in ("server", STANDBY) else None


class SeatTable:
    """The table of the scheduler: of each server, the node that it is now, and that of its standby, if any."""

    def __init__(self, ids: Mapping[Peer, int]) -> None:
        """Begin with the node of each role."""
        self._nodes = {
            peer: tuple(ids[each] for each in (peer, standby_of(peer)) if each in ids)
            for peer in ids if peer.role == "server"
        }  # fmt: skip

    def lose(self, server: Peer, node: int) -> bool:
        """Note that one of the processes of a server is lost; return whether the server has none any more."""
        self._nodes[server] = tuple(each for each in self._nodes[server] if each != node)
        return not self._nodes[server]

    def replace(self, server: Peer, node: int) -> None:
        """Note that there is a new process, which is the standby of the other one."""
        self.lose(server, node)
        self._nodes[server] = (*self._nodes[server], node)

    @property
    def rows(self) -> tuple[tuple[int, ...], ...]:
        """The nodes of each server, in the order of the servers."""
        return tuple(self._nodes.values())


class Seats:
    """Follows, in the receiving thread, which process is a server, on behalf of the transport of this process."""

    def __init__(self, me: Peer, ids: Mapping[Peer, int], node: Node, transport: PsliteTransport) -> None:
        """Begin with no server seated.

        Args:
            me: the role of this process.
            ids: the node of each role.
            node: the node of this process.
            transport: sends to the servers, and tells its role of new standbys.
        """
        self._ids, self._node, self._transport = ids, node, transport
        self._own = server_of(me)
        self._seated = self._acts = False
        # On a server: its new standby, which is ready if the number is not 0; and the nodes whose messages it may not
        # get, as far as they have not said that it does.
        self._newcomer = 0
        self._single: set[int] = set()
        self._doubled: dict[int, tuple[int, int]] = {}

    @property
    def stands_by(self) -> bool:
        """Whether this process is a standby."""
        return self._own is not None and not self._acts

    def begin(self, *, acts: bool) -> None:
        """Begin with the others: each process is what its role says; `acts` says whether this one is a server."""
        self._seated, self._acts = True, acts

    def take(self, rows: tuple[tuple[int, ...], ...]) -> None:
        """Begin as a replacement, with the table of the scheduler."""
        if not self._seated:
            self._seated = True
            servers = (peer for peer in self._ids if peer.role == "server")
            seats = dict(zip(servers, rows, strict=True))
            doubled = {server for server in seats if standby_of(server) in self._ids}
            self._transport.seat({server: nodes for server, nodes in seats.items() if server in doubled})
            for server in doubled - {self._own}:
                for standby in seats[server][1:]:
                    self._tell_doubled(server, standby, self._transport.incarnation_of(standby))
            if self._own is not None and seats[self._own][0] == self._node.id:
                why = "it was lost before another process could join"
                self._transport.tell(Lost(self._own, why, time.monotonic()))

    def observe(self, change: NodeDeath | NodeInfo, peer: Peer) -> None:
        """Go on after a process was lost, or another one has replaced it, whichever role it has."""
        node = change.node if isinstance(change, NodeDeath) else change
        if self._acts and node.id in self._single:  # a new process of the node knows the standby
            self._single.discard(node.id)
            self._take_standby()
        server = server_of(peer)
        if server is None:
            return
        if not self._seated:
            if not isinstance(change, NodeDeath):  # the scheduler says where it is when this process joins
                self._transport.note_incarnation(node.id, change.incarnation)
        elif isinstance(change, NodeDeath):
            self._lose(node.id, server, change.why, change.since)
        else:
            self._lose(node.id, server, REPLACED, time.monotonic())
            self._transport.add_standby(server, node.id, change.incarnation)
            if server == self._own:
                self._newcomer = 0
                gone = {death.node.id for death in self._node.deaths()}
                self._single = {*self._ids.values()} - {SCHEDULER_ID, self._node.id, node.id} - gone
                newcomer = node.id, change.incarnation
                self._single -= {id_ for id_, member in self._doubled.items() if member == newcomer}
            else:
                self._tell_doubled(server, node.id, change.incarnation)

    def _tell_doubled(self, server: Peer, standby: int, incarnation: int) -> None:
        """Tell a server that its standby gets the messages of this process, too."""
        body, now = _MEMBER.pack(standby, incarnation), self._node.timestamp()
        meta = Meta(head=DOUBLED, body=body, request=True, app=APP, customer=0, timestamp=now)
        self._node.send(self._transport.acting(server), meta)

    def ready(self, peer: Peer, incarnation: int) -> None:
        """Note that a new process is known to all that send it messages."""
        if self._acts and server_of(peer) == self._own:
            self._newcomer = incarnation
            self._take_standby()

    def note_doubled(self, sender: int, body: bytes) -> bool:
        """Note that a new standby gets the messages of a node; return whether the message was one."""
        if len(body) != _MEMBER.size:
            return False
        node, incarnation = self._doubled[sender] = _MEMBER.unpack(body)
        if incarnation == self._transport.incarnation_of(node):
            self._single.discard(sender)
            self._take_standby()
        return True

    def _lose(self, node: int, server: Peer, why: str, since: float) -> None:
        """Go on without one of the two processes of a server, unless this process knows that it is lost."""
        transport, mine = self._transport, server == self._own
        if transport.acting(server) != node:
            if transport.lose_standby(server, node) and mine:
                self._newcomer = 0
                transport.tell(Lost(standby_of(server), why, since))
        elif mine and isinstance(transport, PsliteStandby):
            self._acts = True
            transport.retire_server(Lost(server, why, since))
        else:
            transport.switch(server)

    def _take_standby(self) -> None:
        """Tell the role of its new standby, after all messages that the standby does not get."""
        if self._newcomer and not self._single and self._own is not None:
            self._transport.tell(Replaced(standby_of(self._own), self._newcomer))
            self._newcomer = 0
