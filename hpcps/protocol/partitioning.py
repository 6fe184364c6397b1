"""The partitions of the flat vector: each is sent as one message of a round.

A combiner combines a partition as soon as all its workers have sent it. So combining and sending the next model overlap
with receiving later partitions, and no process holds more than a few partitions of each sender.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from hpcps.numerics.layout import Layout

Bounds = tuple[int, int]
"""A slice (start, stop) of the flat vector."""


@dataclass(frozen=True)
class Partition:
    """A partition relative to its receiver, which holds the whole vector or a shard of it.

    Attributes:
        columns: the slice, relative to the receiver's first element.
        blocks: the receiver's blocks that have elements in it.
        layout: these blocks, or the parts of them that are in the slice.
    """

    columns: slice
    blocks: slice
    layout: Layout

    @classmethod
    def of(cls, layout: Layout, bounds: Bounds) -> Partition:
        """Return the partition for a slice of a layout."""
        part = layout.restrict(*bounds)
        first = layout.first_in(bounds[0])
        return cls(slice(*bounds), slice(first, first + len(part.blocks)), part)


class Partitioning:
    """The partitions of a round that each process receives, in order.

    Attributes:
        updates: for every combiner, by index, the slices of the flat vector in which it receives updates: a validator
            receives the whole vector, a server its shard.
        shards: for every server, the slices in which it sends the model and receives combined updates from validators.
    """

    def __init__(
        self, layout: Layout, bounds: Sequence[Bounds], validators: int, size: int | None = None, *, whole: bool
    ) -> None:
        """Divide the vector.

        Args:
            layout: the blocks of the flat vector.
            bounds: the shard of each server.
            validators: the number of validators; without validators the servers combine.
            size: the maximum number of elements of a partition; None: one partition for each combiner.
            whole: whether partitions consist of whole blocks; a block larger than `size` is then one partition.
        """
        if not validators:
            self.updates = tuple(tuple(_cut(layout, shard, size, whole)) for shard in bounds)
            self.shards = self.updates
            self._pieces: list[list[tuple[int, int, Bounds]]] = []
            return
        partitions = tuple(_by_turns(_cut(layout, (0, layout.size), size, whole), bounds))
        self.updates = (partitions,) * validators
        shards: list[list[Bounds]] = [[] for _ in bounds]
        self._pieces = [[] for _ in partitions]
        for number, partition in enumerate(partitions):
            for server, shard in enumerate(bounds):
                low, high = max(partition[0], shard[0]), min(partition[1], shard[1])
                # A shard without elements goes with the last partition, so that every server gets a message each round.
                if low < high or (shard[0] == shard[1] and number == len(partitions) - 1):
                    piece = (low, high) if low < high else shard
                    self._pieces[number].append((server, len(shards[server]), piece))
                    shards[server].append(piece)
        self.shards = tuple(map(tuple, shards))

    def pieces(self, number: int) -> Sequence[tuple[int, int, Bounds]]:
        """Return the parts of a validator's partition: (server, number among the server's slices, slice)."""
        return self._pieces[number]


def _cut(layout: Layout, bounds: Bounds, size: int | None, whole: bool) -> Iterator[Bounds]:
    """Divide a slice into partitions of at most `size` elements; only blocks larger than that are divided."""
    start, stop = bounds
    if size is None:
        yield bounds
        return
    cuts = [0]
    for block in layout.restrict(start, stop).blocks:
        if block.stop - cuts[-1] <= size:
            continue
        if whole or block.size <= size:
            if block.offset > cuts[-1]:
                cuts.append(block.offset)
            continue
        while block.stop - cuts[-1] > size:
            cuts.append(cuts[-1] + size)
    for low, high in pairwise([*cuts, stop - start]):
        yield start + low, start + high


def _by_turns(slices: Iterator[Bounds], shards: Sequence[Bounds]) -> Iterator[Bounds]:
    """Order slices so that successive ones begin in shards of different servers, and all servers work in parallel."""
    queues: list[list[Bounds]] = [[] for _ in shards]
    for start, stop in slices:
        queues[next(s for s, shard in enumerate(shards) if start < shard[1] or s == len(shards) - 1)].append(
            (start, stop)
        )
    for turn in zip_longest(*queues):
        yield from (slice_ for slice_ in turn if slice_ is not None)
