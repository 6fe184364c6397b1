"""A server's part of the global model, in a synchronous run."""

from __future__ import annotations

from typing import Any

from hpcps.numerics.kernels import prepare
from hpcps.numerics.layout import Layout
from hpcps.protocol.messages import Peer
from hpcps.protocol.partitioning import Partition
from hpcps.protocol.roster import partitioning_of, shards_of
from hpcps.roles.resources import Resources
from hpcps.roles.rule_state import RuleState
from hpcps.roles.sync.collector import Collector
from hpcps.rules import Context, Rule
from hpcps.spec.schema import Run


class Shard:
    """The slice `[m]` of a round's model, and the slice of the next model, which is made partition by partition.

    Attributes:
        table: the layout of the whole model, as the coordinator described it.
        size: m.
        partitions: the partitions of the slice.
        model: the slice of this round. It stays unchanged while the next one is made: a reader may still read it, and
            a partition may have to be made again.
        coming: the slice of the next round.
        finite: whether all combined updates so far were finite.
    """

    def __init__(self, server: Peer, run: Run, table: list[list[Any]], resources: Resources) -> None:
        self.table = table
        whole = Layout.from_json(table)
        start, stop = shards_of(run, whole)[server.index]
        layout = whole.restrict(start, stop)
        slices = partitioning_of(run, whole).shards[server.index]
        self.partitions = tuple(Partition.of(layout, (low - start, high - start)) for low, high in slices)
        self.size = stop - start
        self.model, self.coming = resources.allocate(self.size), resources.allocate(self.size)
        self._threads = resources.threads
        prepare(run.topology.workers * self.size)
        self.finite = True

    def combine(self, collector: Collector, rule: Rule, kept: RuleState) -> None:
        """Make the next partition: that of this round's model plus the combined updates."""
        columns = collector.partition.columns
        context = Context(
            random=kept.random,
            state=kept.arrays,
            base=self.model[columns],
            out=self.coming[columns],
            threads=self._threads,
        )
        combined = collector.combine(rule, context)
        self.finite = self.finite and combined.finite

    def turn(self) -> None:
        """Begin the next round: all partitions of its model are made."""
        self.model, self.coming = self.coming, self.model
