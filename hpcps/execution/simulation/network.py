"""The simulated network between hosts."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial

from hpcps.execution.simulation.event_queue import Action, EventQueue
from hpcps.execution.simulation.sharing import Links
from hpcps.protocol.messages import Peer
from hpcps.spec.simulation import Link


class Network:
    """Delivers messages over the local link of a host, or over the outgoing link of one and the incoming of another.

    Messages from one sender to one receiver are sequential, because MPI keeps them in order.
    """

    def __init__(self, event_queue: EventQueue, homes: Mapping[Peer, int], local: Link, remote: Link) -> None:
        """Connect processes.

        Args:
            event_queue: the clock.
            homes: the host of each process.
            local: the link between processes of one host; each host has one.
            remote: the outgoing and the incoming link of each host.
        """
        self._event_queue = event_queue
        self._homes = homes
        self._kinds = {"local": local, "out": remote, "in": remote}
        widths = {(kind, host): link.bandwidth for kind, link in self._kinds.items() for host in set(homes.values())}
        self._links = Links(event_queue, {link: width for link, width in widths.items() if width is not None})
        self._queues: dict[tuple[Peer, Peer], deque[tuple[int, Action]]] = {}

    def carry(self, source: Peer, to: Peer, size: int, arrive: Action) -> None:
        """Transfer a message of `size` bytes; `arrive` is called when it arrives."""
        queue = self._queues.setdefault((source, to), deque())
        queue.append((size, arrive))
        if len(queue) == 1:
            self._transfer(source, to)

    def _transfer(self, source: Peer, to: Peer) -> None:
        here, there = self._homes[source], self._homes[to]
        kinds = ("local",) if here == there else ("out", "in")
        link = self._kinds[kinds[0]]
        size = self._queues[source, to][0][0]
        done = partial(self._transferred, source, to, link.latency)
        if link.bandwidth is None or not size:
            self._event_queue.at(self._event_queue(), done)
        else:
            self._links.begin(size, done, [(kind, host) for kind, host in zip(kinds, (here, there), strict=False)])

    def _transferred(self, source: Peer, to: Peer, latency: float) -> None:
        queue = self._queues[source, to]
        _, arrive = queue.popleft()
        self._event_queue.at(self._event_queue() + latency, arrive)
        if queue:
            self._transfer(source, to)
