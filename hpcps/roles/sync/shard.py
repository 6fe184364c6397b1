"""The shard of the model that a server of the synchronous protocol keeps."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from hpcps.aggregation.encoding import UpdateDecoder
from hpcps.aggregation.rule_state import RuleState
from hpcps.compression import Codec
from hpcps.numerics.kernels import prepare
from hpcps.numerics.layout import Layout, Vector
from hpcps.numerics.state import Kept
from hpcps.numerics.updates import Destination
from hpcps.numerics.vectors import finite
from hpcps.optimizers import NoOptimizer, Stepper
from hpcps.protocol.messages import Peer
from hpcps.protocol.partitioning import Partition
from hpcps.protocol.roster import partitioning_of, shards_of
from hpcps.roles.resources import Resources
from hpcps.roles.sync.partitions import PartitionCollector
from hpcps.roles.weights import UpdateWeights
from hpcps.rules import Context, Rule
from hpcps.spec.schema import Run


@dataclass(frozen=True)
class Slice:
    """The slice of one round.

    Attributes:
        model: the slice of the model `[m]`.
        held: the slice that its readers have decoded `[m]`; `model` itself if it is sent as it is.
        room: the memory of `codes`.
        codes: of each partition that is made, the encoded difference to what the readers had before.
    """

    model: Vector
    held: Vector
    room: Vector
    codes: dict[int, Vector] = field(default_factory=dict)


class SyncShard:
    """The slice `[m]` of a round's model, and the slice of the next model, which is made partition by partition.

    Attributes:
        table: the layout of the whole model, as the coordinator described it.
        size: m.
        partitions: the partitions of the slice.
        now: the slice of this round. It stays unchanged while the next one is made: a reader may still read it, and a
            partition may have to be made again.
        coming: the slice of the next round.
        first_block: the index in the model of the first block of the slice.
        finite: whether all models so far were finite.
        decoder: decodes the updates of workers.
        encoder: encodes models; None if they are sent as they are.
        stepper: the server optimizer; None if the rule adds its result to the model.
    """

    def __init__(self, server: Peer, run: Run, table: list[list[Any]], resources: Resources) -> None:
        self.table = table
        whole = Layout.from_json(table)
        start, stop = shards_of(run, whole)[server.index]
        layout = whole.restrict(start, stop)
        self.first_block = whole.first_in(start)
        self.decoder = UpdateDecoder.of(run, whole, (start, stop))
        slices = partitioning_of(run, whole).shards[server.index]
        self.partitions = tuple(Partition.of(layout, (low - start, high - start)) for low, high in slices)
        self.size = stop - start
        self.encoder = Codec.of(run.communication.compression, whole, "model")
        rooms = [0]
        if self.encoder is not None:
            parts = ((part.layout, self.first_block + part.blocks.start) for part in self.partitions)
            rooms = [*accumulate((self.encoder.most_elements(*part) for part in parts), initial=0)]
        self._rooms = [slice(*bounds) for bounds in pairwise(rooms)]
        self._resources = resources
        self.now, self.coming = self._allocated(rooms[-1]), self._allocated(rooms[-1])
        optimizer = run.server_optimizer
        adds = isinstance(optimizer, NoOptimizer)
        self.stepper = None if adds else Stepper(optimizer, self.size, resources.local)
        prepare(run.topology.workers * self.size)
        self.finite = True
        self._earlier: list[tuple[int, Slice]] = []

    def _allocated(self, elements: int) -> Slice:
        """Return memory for a slice; servers send `held` and `codes` from it."""
        held, size = self._resources.allocate(self.size), self.size
        if self.encoder is None:
            return Slice(held, held, held[:0])
        return Slice(self._resources.local(size), held, self._resources.allocate(elements))

    def begin(self, model: Vector, held: Vector | None = None) -> None:
        """Begin with a slice of a model `[m]`, and with what its readers have, by default the same."""
        self.now.model[:] = model
        if self.encoder is not None:
            self.now.held[:] = model if held is None else held

    @property
    def kept(self) -> dict[str, Kept]:
        """What a checkpoint contains in addition to the models, by name."""
        parts = {"optimizer": self.stepper, "encoding": self.encoder, **self.decoder.kept}
        return {name: part for name, part in parts.items() if part is not None}

    def combine(self, collector: PartitionCollector, rule: Rule, kept: RuleState, weights: UpdateWeights) -> None:
        """Make the next partition: that of this round's model plus the combined updates."""
        number, columns = collector.current, collector.partition.columns
        model, coming = self.now.model[columns], self.coming.model[columns]
        to = Destination(None if self.stepper else model, coming, self._resources.threads)
        context = Context(random=kept.random, state=kept.arrays)
        good = collector.combine_next(rule, context, to, weights).finite
        if self.stepper:
            good = self.stepper.apply(coming, model, coming, columns)
        if self.encoder is not None:
            part, held = self.partitions[number], self.coming.held[columns]
            held[:] = self.now.held[columns]
            whole, room = np.ones(len(part.layout.blocks), np.bool_), self.coming.room[self._rooms[number]]
            first = self.first_block + part.blocks.start
            self.coming.codes[number] = self.encoder.encode_difference(part.layout, first, whole, coming, held, room)
            good = good and finite(held)
            if self.encoder.loses:
                coming[:] = held
        self.finite = self.finite and good

    def turn(self, round: int, read: Collection[int] = ()) -> None:
        """Begin a round: all partitions of its model are made.

        Args:
            round: the round.
            read: the rounds whose models may still be read; only late workers of a run with a quorum read earlier ones.
        """
        self._earlier.append((round - 1, self.now))
        self.now = self.coming
        unread = next((n for n, (earlier, _) in enumerate(self._earlier) if earlier not in read), None)
        elements = self.now.room.size
        self.coming = self._allocated(elements) if unread is None else self._earlier.pop(unread)[1]
