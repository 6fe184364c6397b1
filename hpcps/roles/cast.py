"""Who is in a run, and who talks to whom."""

from __future__ import annotations

from dataclasses import dataclass

from hpcps.layout import Layout
from hpcps.messages import Peer


@dataclass(frozen=True)
class Cast:
    """The roles of a run. With validators they combine; without, the servers do, each its shard."""

    servers: int
    validators: int
    workers: int

    @property
    def combiners(self) -> int:
        """How many processes combine updates."""
        return self.validators or self.servers

    def all_servers(self) -> tuple[Peer, ...]:
        """Every server, in shard order."""
        return tuple(Peer("server", s) for s in range(self.servers))

    def readers(self) -> tuple[Peer, ...]:
        """Everyone who receives the model."""
        workers = tuple(Peer("worker", k) for k in range(self.workers))
        return workers + tuple(Peer("validator", v) for v in range(self.validators))

    @property
    def chief(self) -> Peer:
        """Who gives the initial weights, counts the epochs and evaluates."""
        return Peer("validator" if self.validators else "worker", 0)

    def share(self, combiner: Peer) -> tuple[Peer, ...]:
        """The workers whose updates a combiner gets, in worker order."""
        if combiner.role == "server":
            return tuple(Peer("worker", k) for k in range(self.workers))
        return tuple(Peer("worker", k) for k in range(combiner.index, self.workers, self.validators))

    def routes(self, worker: int, layout: Layout) -> tuple[tuple[Peer, int, int], ...]:
        """Where a worker's update goes: (combiner, start, stop) of the slice of the flat vector that each gets."""
        if self.validators:
            return ((Peer("validator", worker % self.validators), 0, layout.size),)
        bounds = layout.bounds(self.servers)
        return tuple((peer, *bounds[peer.index]) for peer in self.all_servers())
