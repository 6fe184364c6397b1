"""The work of a scheduler: registration, barriers, failure detection."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from hpcps.transport.pslite.deaths import NodeDeath, encode_deaths
from hpcps.transport.pslite.membership import KnownNodes
from hpcps.transport.pslite.meta import SCHEDULER_ID, Command, Control, NodeInfo, members
from hpcps.transport.pslite.registry import NodeRegistry
from hpcps.transport.pslite.settings import Settings

_log = logging.getLogger(__name__)


class Scheduling:
    """Runs in the receiving thread of the scheduler."""

    def __init__(self, settings: Settings, members: KnownNodes, pass_barrier: Callable[[], None]) -> None:
        self.registry = NodeRegistry(settings.servers, settings.workers)
        self._settings = settings
        self._members = members
        self._pass_barrier = pass_barrier
        self._reported: set[int] = set()
        self._arrived: dict[int, dict[int, int]] = {}

    def register(self, node: NodeInfo) -> tuple[str | None, str | None]:
        """Register a node; return why it is refused, or None, and why it has to wait for a dead node, or None."""
        if refusal := self.registry.refusal(node):
            return refusal, None
        if self.registry.add(node):
            assert self._members.me is not None
            self._members.connect([*self.registry.nodes.values(), self._members.me])
            for id_ in self.registry.nodes:
                self._members.alive(id_)
                self._send_list(id_)
        elif self.registry.complete:
            self._recover()
            if node in self.registry.waiting:
                return None, "all nodes have registered already; it replaces the first node of its role that dies"
        return None, None

    def recover(self) -> None:
        """Report dead nodes, and let waiting nodes replace them."""
        if self.registry.complete:
            self._recover()

    def arrive(self, sender: int, group: int, customer: int) -> None:
        """Record that a node waits at a barrier; when all wait, release them."""
        arrived = self._arrived.setdefault(group, {})
        arrived[sender] = customer
        if self.missing(group):
            return
        del self._arrived[group]
        for id_, customer in arrived.items():
            if id_ == SCHEDULER_ID:
                self._pass_barrier()
            else:
                self._members.send_control(id_, Control(Command.BARRIER, group=group), app=0, customer=customer)

    def missing(self, group: int) -> list[int]:
        """Return the nodes of a group that do not wait at its barrier."""
        arrived = self._arrived.get(group, {})
        return [id_ for id_ in members(group, self._settings.servers, self._settings.workers) if id_ not in arrived]

    def _recover(self) -> None:
        deaths = {death.node.id: death for death in self._members.deaths()}
        for id_, death in deaths.items():
            if id_ not in self._reported:
                _log.error("%s", death)
        recovered = self.registry.recover(set(deaths))
        if recovered:
            self._replace(recovered, set(deaths))
        for node in recovered:
            deaths.pop(node.id, None)
        if recovered or deaths.keys() != self._reported:
            self._announce(deaths)

    def _announce(self, deaths: Mapping[int, NodeDeath]) -> None:
        """Send the list of all dead nodes to the others, as a heartbeat with a body, which C++ nodes do not read."""
        self._reported = set(deaths)
        heartbeat = Control(Command.HEARTBEAT, (self._members.nodes[SCHEDULER_ID],))
        for id_ in self.registry.nodes.keys() - deaths.keys():
            self._members.send_control(id_, heartbeat, body=encode_deaths(deaths.values()))

    def _replace(self, recovered: Sequence[NodeInfo], dead: set[int]) -> None:
        """Tell all nodes which nodes have replaced dead ones."""
        self._members.connect(recovered)
        for node in recovered:
            _log.warning("the %s replaces a dead node", node)
            self._members.alive(node.id)
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
