"""What a scheduler does beside being a node: registration, barriers, deaths."""

from __future__ import annotations

import logging
import time
from typing import Any, Protocol

from hpcps.transport.pslite.meta import SCHEDULER_ID, Command, Control, NodeInfo, members
from hpcps.transport.pslite.registry import Registry
from hpcps.transport.pslite.settings import Settings

_log = logging.getLogger(__name__)


class Desk(Protocol):
    """What the scheduling needs of its node."""

    me: NodeInfo | None
    nodes: dict[int, NodeInfo]

    def tell(self, to: int, control: Control, **fields: Any) -> None:
        """Send a control message."""

    def enter(self, nodes: list[NodeInfo]) -> None:
        """Connect to nodes."""

    def pass_barrier(self) -> None:
        """Its own barrier is passed."""


class Scheduling:
    """Runs in the receiving thread of the scheduler."""

    def __init__(self, settings: Settings, desk: Desk) -> None:
        self.registry = Registry(settings.servers, settings.workers)
        self._settings = settings
        self._desk = desk
        self._heard: dict[int, float] = {}
        self._reported: set[int] = set()
        self._arrived: dict[int, dict[int, int]] = {}

    def register(self, node: NodeInfo) -> str | None:
        """Take in a node; say why not, if it cannot be."""
        if refusal := self.registry.refusal(node):
            return refusal
        if self.registry.add(node):
            assert self._desk.me is not None
            self._desk.enter([*self.registry.nodes.values(), self._desk.me])
            now = time.monotonic()
            for id_ in self.registry.nodes:
                self._heard[id_] = now
                self._send_list(id_)
        elif self.registry.complete:
            self._recover()
        return None

    def heard(self, sender: int) -> None:
        """A node is alive."""
        self._heard[sender] = time.monotonic()
        self._reported.discard(sender)

    def dead(self) -> list[int]:
        """Return who has been silent for too long, the longest first."""
        limit = self._settings.heartbeat_timeout
        if not limit:
            return []
        heard = sorted(self._heard.items(), key=lambda item: item[1])
        return [id_ for id_, at in heard if id_ != SCHEDULER_ID and time.monotonic() - at > limit]

    def tend(self) -> None:
        """Report deaths; let those that wait take the places of the dead."""
        if self.registry.complete:
            self._recover()

    def _report(self) -> None:
        for id_ in sorted(set(self.dead()) - self._reported):
            self._reported.add(id_)
            silent = self._settings.heartbeat_timeout
            _log.error("the %s has not been heard of for %g s: it is dead", self._desk.nodes[id_], silent)

    def arrive(self, sender: int, group: int, customer: int) -> None:
        """A node waits at a barrier; when all do, tell them so."""
        arrived = self._arrived.setdefault(group, {})
        arrived[sender] = customer
        if self.missing(group):
            return
        del self._arrived[group]
        for id_, customer in arrived.items():
            if id_ == SCHEDULER_ID:
                self._desk.pass_barrier()
            else:
                self._desk.tell(id_, Control(Command.BARRIER, group=group), app=0, customer=customer)

    def missing(self, group: int) -> list[int]:
        """Return who of a group does not wait at its barrier."""
        arrived = self._arrived.get(group, {})
        return [id_ for id_ in members(group, self._settings.servers, self._settings.workers) if id_ not in arrived]

    def _recover(self) -> None:
        self._report()
        dead = set(self.dead())
        recovered = self.registry.recover(dead)
        if not recovered:
            return
        self._desk.enter(recovered)
        for node in recovered:
            _log.warning("the %s takes the place of one that died", node)
            self.heard(node.id)
            # It did not wait where its predecessor did.
            for arrived in self._arrived.values():
                arrived.pop(node.id, None)
        dead -= {node.id for node in recovered}
        fresh = {node.id for node in recovered}
        # The others first: they are to know of it when it speaks to them.
        for id_ in self.registry.nodes.keys() - fresh - dead:
            self._desk.tell(id_, Control(Command.ADD_NODE, tuple(recovered)))
        for id_ in fresh:
            self._send_list(id_)

    def _send_list(self, to: int) -> None:
        assert self._desk.me is not None
        self._desk.tell(to, Control(Command.ADD_NODE, (*self.registry.nodes.values(), self._desk.me)))
