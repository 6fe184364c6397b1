"""The roles of a run, and which of them exchange messages."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from hpcps.compression import Compressor
from hpcps.compression.base import Way
from hpcps.numerics.layout import Layout
from hpcps.protocol.messages import Peer
from hpcps.protocol.partitioning import Bounds, Partitioning
from hpcps.spec.schema import Run

SERVER_0 = Peer("server", 0)
"""The server that decides when there is a checkpoint, and seals it; it also closes the rounds of a quorum, answers
queries of local steps, and keeps the log of an asynchronous run."""

ADVERSARY = Peer("adversary", 0)
"""The role that knows the honest updates and who is Byzantine, in a run whose attack needs to know others' updates."""

EVALUATOR = Peer("evaluator", 0)
"""The role that evaluates models in place of the coordinator, in a run with `topology.evaluators = 1`."""


STANDBY = "standby"
"""What the standbys of servers are called where roles have names."""


def standby_of(server: Peer) -> Peer:
    """Return the standby of a server, which is no role: it handles the server's events, see `execution/standby`."""
    return Peer(STANDBY, server.index)


@dataclass(frozen=True)
class Roster:
    """The roles of a run. Validators combine updates; without validators each server combines its shard."""

    servers: int
    validators: int
    workers: int
    adversary: bool = False
    evaluator: bool = False

    @classmethod
    def of(cls, run: Run) -> Roster:
        """Return the roster of a run."""
        topology = run.topology
        evaluator = bool(topology.evaluators)
        return cls(topology.servers, topology.validators, topology.workers, run.has_adversary, evaluator)

    def everyone(self) -> tuple[Peer, ...]:
        """Every role."""
        return (*self.with_state(), *((EVALUATOR,) if self.evaluator else ()))

    def with_state(self) -> tuple[Peer, ...]:
        """Every role that writes a part of a checkpoint: the coordinator keeps the models for the evaluator."""
        return (*self.readers(), *self.all_servers(), *self.adversaries())

    def adversaries(self) -> tuple[Peer, ...]:
        """The adversary, if there is one."""
        return (ADVERSARY,) if self.adversary else ()

    @property
    def combiners(self) -> int:
        """The number of processes that combine updates."""
        return self.validators or self.servers

    def all_servers(self) -> tuple[Peer, ...]:
        """Every server, in shard order."""
        return tuple(Peer("server", s) for s in range(self.servers))

    def all_workers(self) -> tuple[Peer, ...]:
        """Every worker."""
        return tuple(Peer("worker", k) for k in range(self.workers))

    def all_validators(self) -> tuple[Peer, ...]:
        """Every validator."""
        return tuple(Peer("validator", v) for v in range(self.validators))

    def readers(self) -> tuple[Peer, ...]:
        """Every role that receives the model."""
        return self.all_workers() + self.all_validators()

    @property
    def coordinator(self) -> Peer:
        """The role that provides the initial weights, counts the epochs, and evaluates or has the evaluator do it."""
        return Peer("validator" if self.validators else "worker", 0)

    def replaceable(self, run: Run) -> tuple[Peer, ...]:
        """The roles that a run may lose: what `[survive]` names.

        Who survives the loss of the coordinator survives that of the evaluator.
        """
        workers = self.all_workers() if run.survive.workers else ()
        validators = self.all_validators() if run.survive.validators else ()
        evaluators = (EVALUATOR,) if self.evaluator and run.survives_coordinator else ()
        return (*workers, *validators, *evaluators)

    def standbys(self, run: Run) -> tuple[Peer, ...]:
        """The standbys of the servers, if the run survives the loss of servers."""
        return tuple(map(standby_of, self.all_servers())) if run.survive.servers else ()

    def validator_of(self, worker: int, there: Collection[int]) -> int | None:
        """Return the validator that combines a worker's update while only these validators are there; None if none is.

        That is its own one, or else one of the others, among which the workers of lost validators are spread.
        """
        own, others = worker % self.validators, sorted(there)
        if own in there:
            return own
        return others[worker // self.validators % len(others)] if others else None

    def combiners_of(self, worker: int) -> tuple[Peer, ...]:
        """The roles that combine a worker's update."""
        return (Peer("validator", worker % self.validators),) if self.validators else self.all_servers()

    def possible_combiners_of(self, run: Run, worker: int) -> tuple[Peer, ...]:
        """The roles that combine a worker's update, also while other validators are lost."""
        return self.all_validators() if run.survive.validators else self.combiners_of(worker)

    def deciders_of(self, run: Run, peer: Peer) -> tuple[Peer, ...]:
        """The roles one of which lets the replacement of a process take part.

        In an asynchronous run a validator has server 0 let that of a worker take part.
        """
        if peer == EVALUATOR:
            return (self.coordinator,)
        if peer.role == "validator" or not self.validators:
            return (SERVER_0,)
        combiners = self.possible_combiners_of(run, peer.index)
        return combiners if run.train.mode == "sync" else (SERVER_0, *combiners)

    def share(self, combiner: Peer) -> tuple[Peer, ...]:
        """The workers whose updates a combiner receives, in worker order."""
        if combiner.role == "server":
            return self.all_workers()
        return tuple(Peer("worker", k) for k in range(combiner.index, self.workers, self.validators))

    def governed(self, run: Run) -> tuple[Peer, ...]:
        """The roles whose numbers of local steps a policy decides, workers first: all that train.

        Validators train only under a rule that needs a reference.
        """
        trains = "reference" in run.validation.rule.requires
        return tuple(peer for peer in self.readers() if peer.role == "worker" or trains)

    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The workers whose updates are combined with each other: those of each validator, or all workers."""
        combiners = [Peer("validator", v) for v in range(self.validators)] or [Peer("server", 0)]
        return tuple(tuple(worker.index for worker in self.share(combiner)) for combiner in combiners)


def shards_of(run: Run, layout: Layout) -> tuple[Bounds, ...]:
    """Return the shard of each server; where servers combine, a shard holds all that the rule sees at once.

    Without servers every worker keeps the whole model: the shard of each worker.
    """
    topology, sees = run.topology, run.validation.rule.scope
    # With validators, servers encode models, and combine nothing that sees blocks, unless they have a buffer.
    combine = not topology.validators or run.buffered
    whole = _whole_blocks(run) if combine else _encodes_blocks(run, "model")
    if run.collective:
        return ((0, layout.size),) * topology.workers
    assert not combine or topology.servers < 2 or sees != "vector", "the specification has been checked"
    return layout.bounds(topology.servers, whole=whole)


def partitioning_of(run: Run, layout: Layout) -> Partitioning:
    """Return the partitioning of a run's model.

    Asynchronous updates, those of a collective exchange, those for a rule that sees whole updates, and those of workers
    that may be lost are whole.
    """
    size, sees = run.transport.partition, run.validation.rule.scope
    whole = run.train.mode == "async" or run.collective or sees == "vector" or run.survive.workers
    elements = None if size == "auto" or whole else size // 64 * 16  # whole cache lines
    shards = shards_of(run, layout)
    return Partitioning(layout, shards, run.topology.validators, elements, whole=_whole_blocks(run))


def _whole_blocks(run: Run) -> bool:
    """Return whether the rule or the compressor sees whole blocks of an update."""
    encoded = _encodes_blocks(run, "update") or _encodes_blocks(run, "model")
    return run.validation.rule.scope == "block" or encoded


def _encodes_blocks(run: Run, way: Way) -> bool:
    """Return whether the compressor sees whole blocks of what it encodes on a way."""
    compressor = run.communication.compression
    return isinstance(compressor, Compressor) and compressor.granularity != "coordinate" and compressor.encodes(way)
