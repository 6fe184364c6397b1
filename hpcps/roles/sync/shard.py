"""The shard of the model that a server of the synchronous protocol keeps."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from hpcps.compression import Codec
from hpcps.numerics.kernels import prepare
from hpcps.numerics.layout import Layout, Vector
from hpcps.numerics.updates import Destination
from hpcps.optimizers import NoOptimizer, Stepper
from hpcps.protocol.messages import Peer
from hpcps.protocol.partitioning import Partition
from hpcps.protocol.roster import partitioning_of, shards_of
from hpcps.roles.combiner_state import RuleState
from hpcps.roles.resources import Resources
from hpcps.roles.sync.partitions import PartitionCollector
from hpcps.rules import Context, Rule
from hpcps.spec.schema import Run


class SyncShard:
    """The slice `[m]` of a round's model, and the slice of the next model, which is made partition by partition.

    Attributes:
        table: the layout of the whole model, as the coordinator described it.
        size: m.
        partitions: the partitions of the slice.
        model: the slice of this round. It stays unchanged while the next one is made: a reader may still read it, and
            a partition may have to be made again.
        coming: the slice of the next round.
        first_block: the index in the model of the first block of the slice.
        finite: whether all models so far were finite.
        codec: decodes the updates of workers; None if they are sent as they are.
        stepper: the server optimizer; None if the rule adds its result to the model.
    """

    def __init__(self, server: Peer, run: Run, table: list[list[Any]], resources: Resources) -> None:
        self.table = table
        whole = Layout.from_json(table)
        start, stop = shards_of(run, whole)[server.index]
        layout = whole.restrict(start, stop)
        self.codec = Codec.of(run.communication.compression, whole)
        self.first_block = whole.first_in(start)
        slices = partitioning_of(run, whole).shards[server.index]
        self.partitions = tuple(Partition.of(layout, (low - start, high - start)) for low, high in slices)
        self.size = stop - start
        self.model, self.coming = resources.allocate(self.size), resources.allocate(self.size)
        self._threads = resources.threads
        optimizer = run.server_optimizer
        adds = isinstance(optimizer, NoOptimizer)
        self.stepper = None if adds else Stepper(optimizer, self.size, resources.local)
        prepare(run.topology.workers * self.size)
        self.finite = True
        self._allocate = resources.allocate
        self._earlier: list[tuple[int, Vector]] = []

    def combine(self, collector: PartitionCollector, rule: Rule, kept: RuleState) -> None:
        """Make the next partition: that of this round's model plus the combined updates."""
        columns = collector.partition.columns
        model, coming = self.model[columns], self.coming[columns]
        to = Destination(None if self.stepper else model, coming, self._threads)
        good = collector.combine(rule, Context(random=kept.random, state=kept.arrays), to).finite
        if self.stepper:
            good = self.stepper.apply(coming, model, coming, columns)
        self.finite = self.finite and good

    def turn(self, round: int, read: Collection[int] = ()) -> None:
        """Begin a round: all partitions of its model are made.

        Args:
            round: the round.
            read: the rounds whose models may still be read; only late workers of a run with a quorum read earlier ones.
        """
        self._earlier.append((round - 1, self.model))
        self.model = self.coming
        unread = next((n for n, (earlier, _) in enumerate(self._earlier) if earlier not in read), None)
        self.coming = self._allocate(self.size) if unread is None else self._earlier.pop(unread)[1]
