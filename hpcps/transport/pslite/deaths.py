"""Failure detection: the dead nodes, from the view of one node."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

from hpcps.transport.pslite.meta import NodeInfo

RECONNECTION = 5.0
"""Seconds in which a live node reopens a closed connection; ZeroMQ tries every 0.1 s."""


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


class Deaths:
    """Records signs of life.

    Args:
        timeout: seconds without a message after which a node is dead; 0 for no limit.
        closed: the time at which the connection of a node closed, for nodes without a connection.
    """

    def __init__(self, timeout: float, closed: Mapping[int, float]) -> None:
        self._timeout = timeout
        self._closed = closed
        self._alive: dict[int, float] = {}

    def alive(self, node: int) -> None:
        """Record that a node with heartbeats has sent a message, or is new."""
        self._alive[node] = time.monotonic()

    def known(self, nodes: Mapping[int, NodeInfo]) -> list[NodeDeath]:
        """Return the dead nodes among `nodes`, the longest dead first."""
        now = time.monotonic()
        found = {}
        if self._timeout:
            why = f"it has sent nothing for {self._timeout:g} s"
            found = {id_: (at, why) for id_, at in list(self._alive.items()) if now - at > self._timeout}
        for id_, at in list(self._closed.items()):
            if now - at > RECONNECTION:
                found.setdefault(id_, (at, "its connection has closed"))
        since = sorted((at, id_, why) for id_, (at, why) in found.items() if id_ in nodes)
        return [NodeDeath(nodes[id_], why, at) for at, id_, why in since]
