"""The scheduler: its list of nodes, and its work."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from hpcps.transport.pslite.membership import KnownNodes, NodeDeath, encode_deaths
from hpcps.transport.pslite.meta import EMPTY, SCHEDULER_ID, Command, Control, NodeInfo, NodeRole, id_of, members
from hpcps.transport.pslite.settings import Settings


class NodeRegistry:
    """Collects nodes until all have registered, then assigns ids; later, assigns ids of dead nodes to replacements.

    Attributes:
        nodes: the nodes that have an id.
        waiting: the nodes that registered later and wait for the id of a dead node.
    """

    def __init__(self, servers: int, workers: int) -> None:
        self._expected = {NodeRole.SERVER: servers, NodeRole.WORKER: workers}
        self._coming: list[NodeInfo] = []
        self.waiting: list[NodeInfo] = []
        self.nodes: dict[int, NodeInfo] = {}

    @property
    def complete(self) -> bool:
        """Whether all nodes have registered and have an id."""
        return bool(self.nodes)

    def refusal(self, node: NodeInfo) -> str | None:
        """Return why a node cannot register; None if it can."""
        if node.role not in self._expected:
            return f"a second scheduler, at {node.host}:{node.port}"
        if node.id != EMPTY:
            return f"a node that registers must have no id, this one has {node.id}"
        role = [other for other in self._coming if other.role == node.role and not _replaces(node, other)]
        if node.wanted != EMPTY and not 0 <= node.wanted < self._expected[node.role]:
            return f"the {node} asks for rank {node.wanted} of {self._expected[node.role]}"
        if node.wanted != EMPTY and any(other.wanted == node.wanted for other in role):
            return f"the {node} asks for rank {node.wanted}, for which another node has asked"
        if any(other.address == node.address for other in self._coming + self.waiting):
            return f"the {node} registers twice"
        if len(self.waiting) >= len(self.nodes) > 0:
            return f"the {node} is one more than there are nodes to replace"
        if not self.complete and len(role) == self._expected[node.role]:
            return f"the {node} is one more than the {len(role)} expected"
        return None

    def add(self, node: NodeInfo) -> bool:
        """Register a node that `refusal` accepts; return whether it completes the registry."""
        if self.complete:
            self.waiting.append(node)
            return False
        self._coming = [other for other in self._coming if not _replaces(node, other)] + [node]
        if len(self._coming) < sum(self._expected.values()):
            return False
        ranks = dict.fromkeys(self._expected, 0)
        for each in sorted(self._coming, key=lambda each: (each.wanted, each.address)):
            id_ = id_of(each.role, ranks[each.role])
            ranks[each.role] += 1
            self.nodes[id_] = replace(each, id=id_)
        self._coming.clear()
        return True

    def recover(self, dead: set[int]) -> list[NodeInfo]:
        """Assign the ids of dead nodes to waiting nodes, and return the nodes that got one.

        A waiting node with the address of another node gets the id of that node at once, because two processes cannot
        listen at one address. A node that asks for a rank gets no other one.
        """
        recovered = []
        for node in list(self.waiting):
            same = [id_ for id_, old in self.nodes.items() if old.role == node.role]
            if node.wanted != EMPTY:
                same = [id_of(node.role, node.wanted)]
            match = [id_ for id_ in same if self.nodes[id_].address == node.address]
            match += [id_ for id_ in sorted(same) if id_ in dead]
            if match:
                self.waiting.remove(node)
                dead = dead - {match[0]}
                self.nodes[match[0]] = replace(node, id=match[0], is_recovery=True)
                recovered.append(self.nodes[match[0]])
        return recovered

    def missing(self) -> str:
        """Return a text about the nodes that have not registered yet."""
        parts = []
        for role, expected in self._expected.items():
            come = sum(node.role == role for node in self._coming)
            if come < expected:
                parts.append(f"{expected - come} of {expected} {role.name.lower()}s")
        return " and ".join(parts)


def _replaces(node: NodeInfo, other: NodeInfo) -> bool:
    """Return whether a node that registers is the replacement of one that has registered and has no id yet."""
    return node.role == other.role and node.wanted == other.wanted != EMPTY and node.incarnation > other.incarnation


_log = logging.getLogger(__name__)

_END_AGAIN, _LONGEST_END = 0.5, 60.0
"""Seconds until the process of a dead node is told again to end, doubled each time, and at most; what is sent waits in
memory as long as its host cannot be reached."""


class Scheduling:
    """Runs in the receiving thread of the scheduler."""

    def __init__(
        self,
        settings: Settings,
        members: KnownNodes,
        pass_barrier: Callable[[], None],
        observe: Callable[[NodeDeath | NodeInfo], None],
    ) -> None:
        self.registry = NodeRegistry(settings.servers, settings.workers)
        self._settings = settings
        self._members = members
        self._pass_barrier, self._observe = pass_barrier, observe
        self._reported: set[int] = set()
        self._ends: dict[int, tuple[float, float]] = {}
        self._looked = 0.0
        self._shortest = min(filter(None, (settings.heartbeat_timeout, settings.silence)), default=0.0)
        self._arrived: dict[int, dict[int, int]] = {}

    def register(self, node: NodeInfo) -> tuple[str | None, str | None]:
        """Register a node; return why it is refused, or None, and why it has to wait for a dead node, or None."""
        if refusal := self.registry.refusal(node):
            return refusal, None
        if self.registry.add(node):
            assert self._members.me is not None
            self._members.connect([*self.registry.nodes.values(), self._members.me])
            for id_ in self.registry.nodes:
                self._members.deaths.alive(id_)
                self._send_list(id_)
        elif self.registry.complete:
            self._recover()
            if node in self.registry.waiting:
                return None, "all nodes have registered already; it replaces the first node of its role that dies"
        return None, None

    def recover(self) -> None:
        """Report dead nodes, and let waiting nodes replace them."""
        if self.registry.complete:
            now, before = time.monotonic(), self._looked
            self._looked = now
            # The receiving thread comes here at least four times within each limit, unless it is stopped.
            if before and self._shortest and now - before > self._shortest / 2:
                self._members.deaths.forgive(now - before)
            self._members.probe()
            self._recover()
            self._end_the_dead()

    def _end_the_dead(self) -> None:
        """Tell the processes of dead nodes to end: some may live, and have only been silent or cut off."""
        now, dead = time.monotonic(), self._settings.replaceable & self._reported
        self._ends = {id_: self._ends.get(id_, (now, _END_AGAIN)) for id_ in dead}
        for id_, (due, pause) in self._ends.items():
            if now >= due:
                self._members.send_control(id_, Control(Command.TERMINATE))
                self._ends[id_] = now + pause, min(2 * pause, _LONGEST_END)

    def arrive(self, sender: int, group: int, customer: int) -> None:
        """Record that a node waits at a barrier; when all wait, release them."""
        self._arrived.setdefault(group, {})[sender] = customer
        self._release(group)

    def _release(self, group: int) -> None:
        if self.missing(group):
            return
        arrived = self._arrived.pop(group)
        for id_, customer in arrived.items():
            if id_ == SCHEDULER_ID:
                self._pass_barrier()
            else:
                self._members.send_control(id_, Control(Command.BARRIER, group=group), app=0, customer=customer)

    def missing(self, group: int) -> list[int]:
        """Return the nodes of a group that do not wait at its barrier, without those that the others survive."""
        arrived, everyone = self._arrived.get(group, {}), members(group, self._settings.servers, self._settings.workers)
        return [id_ for id_ in everyone if id_ not in arrived and not self._members.deaths.final(id_)]

    def _recover(self) -> None:
        self._members.deaths.declare()
        deaths = {death.node.id: death for death in self._members.deaths.known()}
        for id_, death in deaths.items():
            if id_ not in self._reported:
                _log.log(self._level(id_, logging.ERROR), "%s", death)
        recovered = self.registry.recover(set(deaths))
        for node in recovered:
            if node.id in deaths and node.id not in self._reported:
                self._observe(deaths[node.id])
        if recovered:
            self._replace(recovered, set(deaths))
        for node in recovered:
            deaths.pop(node.id, None)
        if recovered or deaths.keys() != self._reported:
            self._announce(deaths)

    def _level(self, node: int, otherwise: int) -> int:
        """Return the level of a message about a death: nobody need act on one that the others survive."""
        return logging.INFO if node in self._settings.replaceable else otherwise

    def _announce(self, deaths: Mapping[int, NodeDeath]) -> None:
        """Send the list of all dead nodes to the others, as a heartbeat with a body, which C++ nodes do not read."""
        new = [death for id_, death in deaths.items() if id_ not in self._reported]
        self._reported = set(deaths)
        heartbeat = Control(Command.HEARTBEAT, (self._members.nodes[SCHEDULER_ID],))
        for id_ in self.registry.nodes.keys() - deaths.keys():
            self._members.send_control(id_, heartbeat, body=encode_deaths(deaths.values()))
        for death in new:
            self._observe(death)
        for group in list(self._arrived):
            self._release(group)

    def _replace(self, recovered: Sequence[NodeInfo], dead: set[int]) -> None:
        """Tell all nodes which nodes have replaced dead ones."""
        self._members.connect(recovered)
        for node in recovered:
            self._observe(node)
            _log.log(self._level(node.id, logging.WARNING), "the %s replaces a dead node", node)
            self._members.deaths.alive(node.id)
            # The new process does not wait at the barriers of its predecessor.
            for arrived in self._arrived.values():
                arrived.pop(node.id, None)
        fresh = {node.id for node in recovered}
        # The others first: they must know the new node before it sends to them.
        for id_ in self.registry.nodes.keys() - fresh - dead:
            self._members.send_control(id_, Control(Command.ADD_NODE, tuple(recovered)))
        for id_ in fresh:
            self._send_list(id_)

    def _send_list(self, to: int) -> None:
        assert self._members.me is not None
        self._members.send_control(to, Control(Command.ADD_NODE, (*self.registry.nodes.values(), self._members.me)))
