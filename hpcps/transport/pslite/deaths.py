"""Failure detection: the dead nodes, from the view of one node, and as the scheduler announces them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hpcps.transport.pslite.encoding import MalformedFrameError
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


def encode_deaths(deaths: Iterable[NodeDeath]) -> bytes:
    """Return the body of the scheduler's announcement of all dead nodes."""
    now = time.monotonic()
    return json.dumps([[d.node.id, *d.node.address, d.why, now - d.since] for d in deaths]).encode()


def _decode_deaths(body: bytes) -> dict[int, _AnnouncedDeath]:
    try:
        listed = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise MalformedFrameError(f"its list of dead nodes is not JSON: {error}") from None
    found = {}
    for each in listed if isinstance(listed, list) else (listed,):
        match each:
            case [int(id_), str(host), int(port), str(why), int(age) | float(age)]:
                found[id_] = _AnnouncedDeath((host, port), why, time.monotonic() - age)
            case _:
                raise MalformedFrameError("its list of dead nodes has another form")
    return found


@dataclass(frozen=True)
class _AnnouncedDeath:
    address: tuple[str, int]
    why: str
    since: float


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
        self._announced: dict[int, _AnnouncedDeath] = {}

    def alive(self, node: int) -> None:
        """Record that a node with heartbeats has sent a message, or is new."""
        self._alive[node] = time.monotonic()

    def announce(self, body: bytes) -> None:
        """Take the scheduler's list of all dead nodes: it also knows nodes that send nothing, or not to this node.

        Raises:
            MalformedFrameError: it is no such list.
        """
        self._announced = _decode_deaths(body)

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
        for id_, death in self._announced.items():
            if id_ in nodes and nodes[id_].address == death.address:  # else another process has replaced it
                found.setdefault(id_, (death.since, death.why))
        since = sorted((at, id_, why) for id_, (at, why) in found.items() if id_ in nodes)
        return [NodeDeath(nodes[id_], why, at) for at, id_, why in since]
