"""The nodes of the cluster as one node knows them: their list, the connections to them, and which are dead."""

from __future__ import annotations

import errno
import json
import logging
import random
import select
import socket
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from threading import Event, Lock
from typing import Any, NamedTuple

from hpcps.errors import LaunchError, RunError
from hpcps.inputs import parse_as
from hpcps.transport.pslite.encoding import Admission
from hpcps.transport.pslite.meta import EVERYONE, SCHEDULER_ID, Control, Meta, NodeInfo, NodeRole, members
from hpcps.transport.pslite.sender import Receipt, Sender
from hpcps.transport.pslite.settings import Settings
from hpcps.transport.pslite.sockets import Sockets

_log = logging.getLogger(__name__)

RECONNECTION = 5.0
"""Seconds in which a live node reopens a closed connection; ZeroMQ tries every 0.1 s."""
PROBE_EVERY = 0.1
"""Seconds between two attempts to connect to a replaceable node that has closed its connection."""
_PROBE_TIMEOUT = 1.0


@dataclass(frozen=True)
class NodeDeath:
    """A node that is dead.

    Attributes:
        node: the node.
        why: the evidence.
        since: the time of its last sign of life, on the monotonic clock.
    """

    node: NodeInfo
    why: str
    since: float

    def __str__(self) -> str:
        return f"the {self.node} is dead: {self.why}"


def encode_deaths(deaths: Iterable[NodeDeath]) -> bytes:
    """Return the body of the scheduler's announcement of all dead nodes."""
    now = time.monotonic()
    announced = [_AnnouncedDeath(d.node.id, *d.node.address, d.why, now - d.since) for d in deaths]
    return json.dumps(announced).encode()


class _AnnouncedDeath(NamedTuple):
    """A death as the scheduler announces it: `age` is the seconds since the last sign of life."""

    id: int
    host: str
    port: int
    why: str
    age: float


class Deaths:
    """Records signs of life.

    Args:
        settings: the settings of this node, with the limits of silence.
        closed: the time at which the connection of a node closed, for nodes without a connection.
        nodes: all nodes by id.
    """

    def __init__(self, settings: Settings, closed: Mapping[int, float], nodes: Mapping[int, NodeInfo]) -> None:
        self._timeout = settings.heartbeat_timeout
        self._replaceable, self._silence = settings.replaceable, settings.silence
        self._nodes = nodes
        self._closed = closed
        self._alive: dict[int, float] = {}
        self._unreachable: set[int] = set()
        self._final: dict[int, tuple[float, str]] = {}
        self._announced: tuple[float, list[_AnnouncedDeath]] = 0.0, []

    def alive(self, node: int) -> None:
        """Record that a node with heartbeats has sent a message, or is new."""
        self._alive[node] = time.monotonic()

    def forgive(self, seconds: float) -> None:
        """Count no silence for so many seconds, in which this process was stopped itself."""
        for node in self._alive:
            self._alive[node] += seconds

    def unreachable(self, node: int) -> None:
        """Record that nobody listens at the address of a node without a connection: its process has ended."""
        self._unreachable.add(node)

    def replaced(self, node: int) -> None:
        """Record that a new process has taken over the id of a node."""
        self._unreachable.discard(node)
        self._final.pop(node, None)
        self._alive.pop(node, None)

    def final(self, node: int) -> bool:
        """Return whether a node is dead for good, whatever its process still sends."""
        return node in self._replaceable and (node in self._final or any(d.id == node for d in self._dead_now()))

    def _dead_now(self) -> Iterable[_AnnouncedDeath]:
        """Yield what the scheduler has announced of processes that nobody has replaced since."""
        for death in self._announced[1]:
            if death.id in self._nodes and self._nodes[death.id].address == (death.host, death.port):
                yield death

    def announce(self, body: bytes) -> list[NodeDeath]:
        """Take the scheduler's list of all dead nodes: it also knows nodes that send nothing, or not to this node.

        Returns:
            The nodes that its last list did not have.

        Raises:
            InputError: it is no such list.
        """
        before, now = set(self._dead_now()), time.monotonic()
        known = {(death.id, death.host, death.port) for death in before}
        self._announced = now, parse_as(list[_AnnouncedDeath], "a list of dead nodes", body)
        new = [death for death in self._dead_now() if (death.id, death.host, death.port) not in known]
        return [NodeDeath(self._nodes[death.id], death.why, now - death.age) for death in new]

    def declare(self) -> None:
        """Declare, as the scheduler, that replaceable nodes that are dead now stay dead, in the receiving thread."""
        for death in self.known() if self._replaceable else ():
            if death.node.id in self._replaceable:
                self._final.setdefault(death.node.id, (death.since, death.why))

    def known(self) -> list[NodeDeath]:
        """Return the dead nodes, the longest dead first."""
        now, nodes = time.monotonic(), self._nodes
        found: dict[int, tuple[float, str]] = {}
        for id_, at in list(self._alive.items()):
            limit = (self._silence if id_ in self._replaceable else 0.0) or self._timeout
            if limit and now - at > limit:
                found[id_] = at, f"it has sent nothing for {limit:g} s"
        for id_, at in list(self._closed.items()):
            if now - at > RECONNECTION or id_ in self._unreachable:
                found.setdefault(id_, (at, "its connection has closed"))
        found |= self._final
        for death in self._dead_now():
            found.setdefault(death.id, (self._announced[0] - death.age, death.why))
        since = sorted((at, id_, why) for id_, (at, why) in found.items() if id_ in nodes)
        return [NodeDeath(nodes[id_], why, at) for at, id_, why in since]


class DroppedMessages:
    """Counts dropped messages by kind. The log holds the first of a kind, the second, the fourth, the eighth, …."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def drop(self, kind: str, reason: str) -> None:
        """Count a dropped message.

        Args:
            kind: `malformed`, `foreign` or `unexpected`.
            reason: the reason for dropping it.
        """
        self.counts[kind] += 1
        seen = self.counts[kind]
        if seen & (seen - 1) == 0:
            _log.warning("dropped a %s message (%d so far): %s", kind, seen, reason)


class KnownNodes:
    """The other nodes, the connections to them, and their signs of life.

    Args:
        settings: the settings of this node.
        mesh: whether it also connects to the nodes of its own role.

    Attributes:
        me: this node; known once it listens, and its id once it is registered.
        nodes: all nodes by id; empty before the first list.
        sockets: the connections.
        sender: sends messages, again if they are not acknowledged.
        dropped: counts dropped messages.
        deaths: the signs of life of the nodes.
        registered: whether the first list has come.
        left: whether this node has left.
    """

    def __init__(self, settings: Settings, *, mesh: bool) -> None:
        self.settings = settings
        self.me: NodeInfo | None = None
        self.nodes: dict[int, NodeInfo] = {}
        self.dropped = DroppedMessages()
        self.registered, self.left = Event(), Event()
        self._mesh = mesh
        expected = settings.servers + settings.workers
        self.sockets = Sockets(self.admission, lambda reason: self.dropped.drop("foreign", reason), expected)
        self.sender = Sender(settings, self.sockets)
        self.deaths = Deaths(settings, self.sockets.incoming.closed, self.nodes)
        self._lock = Lock()
        self._timestamp = 0
        self._next_probe = 0.0
        self._probes: dict[int, tuple[socket.socket, float]] = {}

    @property
    def schedules(self) -> bool:
        """Whether this node is the scheduler."""
        return self.settings.role == NodeRole.SCHEDULER

    @property
    def id(self) -> int:
        """The id of this node; known once it is registered."""
        assert self.me is not None
        return self.me.id

    @property
    def scheduler(self) -> str:
        """The address of the scheduler."""
        return f"{self.settings.root_host}:{self.settings.root_port}"

    def timestamp(self) -> int:
        """Return the timestamp of the next request."""
        with self._lock:
            self._timestamp += 1
            return self._timestamp - 1

    def send(self, to: int, meta: Meta, data: Sequence[Any] = ()) -> Receipt:
        """Start sending a message; its data must not change until the receipt is done.

        Raises:
            RunError: there is no such node, or this one has left.
        """
        if not self.sockets.reaches(to):
            raise RunError(f"{self.me} has {'left' if self.left.is_set() else f'no connection to node {to}'}")
        return self.sender.send(self.id, to, meta, data)

    def send_control(self, to: int, control: Control, **fields: Any) -> Receipt:
        """Send a control message."""
        return self.send(to, replace(Meta(control=control, timestamp=self.timestamp()), **fields))

    def admission(self, peer: int | None) -> Admission:
        """Return how this node treats a sender with this id."""
        if peer is not None and self.deaths.final(peer):
            return Admission.LATER  # it is dead, or the replacement, of which the scheduler tells this node soon
        if self.nodes:
            node = None if peer is None else self.nodes.get(peer)
            mine = node is not None and peer != self.id and (self._mesh or node.role != self.settings.role)
            return Admission.MEMBER if mine else Admission.STRANGER
        if self.schedules or peer is None:
            return Admission.STRANGER
        if peer == SCHEDULER_ID:
            return Admission.MEMBER
        # A node that has the scheduler's list already may send before this node has received the list.
        expected = members(EVERYONE, self.settings.servers, self.settings.workers)
        return Admission.LATER if peer in expected else Admission.STRANGER

    def connect(self, nodes: Sequence[NodeInfo]) -> None:
        """Connect to nodes: at first to all of them, later to replacements."""
        assert self.me is not None
        for node in nodes:
            if node.address == self.me.address and node.role == self.me.role:
                self.me = node
        if self.me.is_recovery and not self.registered.is_set():
            # Peers may not know yet that this is a new process: its timestamps must differ from those of the dead one.
            self._timestamp = random.randrange(1 << 20, 1 << 29)
        for node in nodes:
            if node.id in self.nodes:
                if node.id in self._probes:  # of the address of its predecessor
                    self._probes.pop(node.id)[0].close()
                self.deaths.replaced(node.id)
                self.sender.replaced(node.id)
                self.sockets.incoming.replaced(node.id)
            self.nodes[node.id] = node
            if node.id != self.id and (self._mesh or node.role != self.me.role):
                self.sockets.connect(node.id, *node.address, own_id=self.id)
        self.registered.set()
        self.sockets.incoming.resume()

    def probe(self) -> None:
        """Look, as the scheduler, whether the processes of replaceable nodes without a connection have ended."""
        now, closed = time.monotonic(), self.sockets.incoming.closed
        if now < self._next_probe:
            return
        self._next_probe = now + PROBE_EVERY
        for id_, (probe, since) in list(self._probes.items()):
            answered = bool(select.select([], [probe], [], 0)[1])
            if answered and probe.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED:
                self.deaths.unreachable(id_)
            if answered or now - since > _PROBE_TIMEOUT:
                probe.close()
                del self._probes[id_]
        for id_ in (self.settings.replaceable & closed.keys()) - self._probes.keys():
            if now - closed[id_] < PROBE_EVERY or self.deaths.final(id_):
                continue
            probe = socket.socket()
            probe.setblocking(False)
            with suppress(OSError):  # the address of a node is not always one of this family, or reachable
                if probe.connect_ex(self.nodes[id_].address) == errno.ECONNREFUSED:
                    self.deaths.unreachable(id_)
            self._probes[id_] = probe, now

    def close(self, linger: float) -> None:
        """Close all connections, once this node has left; pending messages have `linger` seconds left."""
        for probe, _ in self._probes.values():
            probe.close()
        self.sockets.close(linger)

    def take_list(self, sender: int | None, control: Control) -> Sequence[NodeInfo]:
        """Take a list of nodes from the scheduler; return those in it that have replaced others.

        Raises:
            LaunchError: it is the first one, and does not fit the settings of this node.
        """
        assert self.me is not None
        if sender != SCHEDULER_ID:
            self.dropped.drop("unexpected", "a list of nodes that is not from the scheduler")
        elif reason := objection(control.nodes, self.me, self.settings, first=not self.nodes):
            if not self.nodes:
                raise LaunchError(
                    f"{self.me} cannot join: the scheduler at {self.scheduler} has sent {reason}; "
                    "DMLC_NUM_SERVER and DMLC_NUM_WORKER must be the same for all nodes"
                )
            self.dropped.drop("unexpected", reason)
        else:
            self.deaths.alive(SCHEDULER_ID)
            self.connect(control.nodes)
            return [node for node in control.nodes if node.is_recovery and node.id != self.id]
        return ()


def objection(nodes: Sequence[NodeInfo], me: NodeInfo, settings: Settings, *, first: bool) -> str | None:
    """Return what is wrong with a list of nodes; None if it is valid.

    Args:
        nodes: the list.
        me: the node that receives it.
        settings: the settings of that node.
        first: whether this is its first list, which must contain all nodes; later lists contain replaced nodes.
    """
    everyone = set(members(EVERYONE, settings.servers, settings.workers))
    ids = [node.id for node in nodes]
    if len(set(ids)) != len(ids) or not everyone.issuperset(ids):
        return f"a list of nodes with the ids {ids[:20]}"
    if any(node.role != _role_of(node.id) for node in nodes):
        return "a list of nodes whose ids are not of their roles"
    if not first:
        return None if all(node.is_recovery for node in nodes) else "a second list of nodes"
    if set(ids) != everyone:
        return f"a list of {len(ids)} nodes where there are {len(everyone)}"
    own = sum(node.address == me.address and node.role == me.role for node in nodes)
    return None if own == 1 else f"a list of nodes with this one {own} times"


def _role_of(id_: int) -> NodeRole:
    if id_ == SCHEDULER_ID:
        return NodeRole.SCHEDULER
    return NodeRole.WORKER if id_ % 2 else NodeRole.SERVER
