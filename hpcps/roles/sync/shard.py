"""A server's part of the global model, in a synchronous run."""

from __future__ import annotations

from typing import Any

from hpcps.cuts import Partition
from hpcps.kernels import prepare
from hpcps.layout import Layout
from hpcps.messages import Peer
from hpcps.roles.cast import cuts_of
from hpcps.roles.resources import Resources
from hpcps.roles.sync.collector import Collector
from hpcps.rules import Rule
from hpcps.spec.schema import Run


class Shard:
    """The slice `[m]` of a round's model, and that of the next one, which is made of it partition by partition.

    Attributes:
        table: the layout of the whole model, as the chief described it.
        size: m.
        partitions: what the slice is cut into.
        model: that of this round. It stays as it is while the next one is made: a reader may still be at it, and a
            partition that is found out to be spoilt is begun anew from it.
        coming: the partitions of the next one that are made.
        finite: whether all that was added up so far is.
    """

    def __init__(self, server: Peer, run: Run, table: list[list[Any]], resources: Resources) -> None:
        self.table = table
        whole = Layout.from_json(table)
        start, stop = whole.bounds(run.topology.servers)[server.index]
        layout = whole.restrict(start, stop)
        slices = cuts_of(run, whole).shards[server.index]
        self.partitions = tuple(Partition.of(layout, (low - start, high - start)) for low, high in slices)
        self.size = stop - start
        self.model, self.coming = resources.allocate(self.size), resources.allocate(self.size)
        self._threads = resources.threads
        prepare(run.topology.workers * self.size)
        self.finite = True

    def combine(self, collector: Collector, rule: Rule) -> None:
        """Make the next partition: that of this round's model and what a rule makes of the updates."""
        columns = collector.partition.columns
        combined = collector.combine(rule, base=self.model[columns], out=self.coming[columns], threads=self._threads)
        self.finite = self.finite and combined.finite

    def turn(self) -> None:
        """Begin the next round: all its partitions are made."""
        self.model, self.coming = self.coming, self.model
