"""Who is in a run, and who talks to whom."""

from __future__ import annotations

from dataclasses import dataclass

from hpcps.cuts import Cuts
from hpcps.layout import Layout
from hpcps.messages import Peer
from hpcps.spec.schema import Run


@dataclass(frozen=True)
class Cast:
    """The roles of a run. With validators they combine; without, the servers do, each its shard."""

    servers: int
    validators: int
    workers: int

    @classmethod
    def of(cls, run: Run) -> Cast:
        """Return the cast of a run."""
        return cls(run.topology.servers, run.topology.validators, run.topology.workers)

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

    def combiners_of(self, worker: int) -> tuple[Peer, ...]:
        """Who combines a worker's update."""
        return (Peer("validator", worker % self.validators),) if self.validators else self.all_servers()

    def share(self, combiner: Peer) -> tuple[Peer, ...]:
        """The workers whose updates a combiner gets, in worker order."""
        if combiner.role == "server":
            return tuple(Peer("worker", k) for k in range(self.workers))
        return tuple(Peer("worker", k) for k in range(combiner.index, self.workers, self.validators))


def cuts_of(run: Run, layout: Layout) -> Cuts:
    """Return who gets which partitions of a run's model; asynchronous updates are not cut."""
    topology, size = run.topology, run.transport.partition
    elements = None if size == "auto" or run.train.mode == "async" else size // 64 * 16  # whole cache lines
    return Cuts(layout, topology.servers, topology.validators, elements, whole=run.validation.rule.scores)
