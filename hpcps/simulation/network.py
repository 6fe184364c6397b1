"""The way of messages between processes that are on hosts."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial

from hpcps.messages import Peer
from hpcps.simulation.agenda import Action, Agenda
from hpcps.simulation.config import Link
from hpcps.simulation.sharing import Links


class Network:
    """Carries messages: over the host's own link, or out of one host and into the other.

    Messages of one sender to one receiver follow one another, as MPI keeps them in order.
    """

    def __init__(self, agenda: Agenda, homes: Mapping[Peer, int], local: Link, remote: Link) -> None:
        """Connect processes.

        Args:
            agenda: the clock.
            homes: the host of each.
            local: what connects processes of one host; each host has one.
            remote: each host's way out, and its way in.
        """
        self._agenda = agenda
        self._homes = homes
        self._kinds = {"local": local, "out": remote, "in": remote}
        widths = {(kind, host): link.bandwidth for kind, link in self._kinds.items() for host in set(homes.values())}
        self._links = Links(agenda, {link: width for link, width in widths.items() if width is not None})
        self._queues: dict[tuple[Peer, Peer], deque[tuple[int, Action]]] = {}

    def carry(self, source: Peer, to: Peer, size: int, arrive: Action) -> None:
        """Carry a message of so many bytes; `arrive` is called when it is there."""
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
            self._agenda.at(self._agenda(), done)
        else:
            self._links.begin(size, done, [(kind, host) for kind, host in zip(kinds, (here, there), strict=False)])

    def _transferred(self, source: Peer, to: Peer, latency: float) -> None:
        queue = self._queues[source, to]
        _, arrive = queue.popleft()
        self._agenda.at(self._agenda() + latency, arrive)
        if queue:
            self._transfer(source, to)
