"""The cut of the flat vector into partitions: what of a round travels as one message.

Whoever combines a partition waits for nothing else, so that updates are combined and the next model is on its way while
later partitions still come in, and no process ever holds more than a few partitions of every sender.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

from hpcps.layout import Layout

Bounds = tuple[int, int]
"""A slice (start, stop) of the flat vector."""


@dataclass(frozen=True)
class Partition:
    """A partition as its receiver sees it, who has all or a shard of the vector.

    Attributes:
        columns: the slice, relative to the receiver's first element.
        blocks: which of the receiver's blocks have elements in it.
        layout: these blocks, or the pieces of them that are in the slice.
    """

    columns: slice
    blocks: slice
    layout: Layout

    @classmethod
    def of(cls, layout: Layout, bounds: Bounds) -> Partition:
        """Take a slice of what a layout describes."""
        part = layout.restrict(*bounds)
        first = layout.first_in(bounds[0])
        return cls(slice(*bounds), slice(first, first + len(part.blocks)), part)


class Cuts:
    """Who gets which partitions of a round, in which order.

    Attributes:
        updates: for every combiner, by its index, the slices of the flat vector in which it gets updates: a validator
            gets the whole of it, a server its shard.
        shards: for every server the slices in which it gives the model and gets what validators combined.
    """

    def __init__(self, layout: Layout, servers: int, validators: int, size: int | None = None, *, whole: bool) -> None:
        """Cut.

        Args:
            layout: the blocks of the flat vector.
            servers: how many there are.
            validators: how many there are; without any the servers combine.
            size: the most elements of a partition; None: one partition for each combiner.
            whole: whether no partition cuts a block (as the rule scores blocks); a larger block is a partition then.
        """
        bounds = layout.bounds(servers)
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
                # A shard without elements goes with the last partition, so that every server hears of every round.
                if low < high or (shard[0] == shard[1] and number == len(partitions) - 1):
                    piece = (low, high) if low < high else shard
                    self._pieces[number].append((server, len(shards[server]), piece))
                    shards[server].append(piece)
        self.shards = tuple(map(tuple, shards))

    def pieces(self, number: int) -> Sequence[tuple[int, int, Bounds]]:
        """Return what a validator's partition is made of: (server, number among its slices, slice)."""
        return self._pieces[number]


def _cut(layout: Layout, bounds: Bounds, size: int | None, whole: bool) -> Iterator[Bounds]:
    """Cut a slice into partitions of at most `size` elements; only blocks that are larger than that are cut."""
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
    """Order slices so that neighbours begin in the shards of different servers: all servers are at work at once."""
    queues: list[list[Bounds]] = [[] for _ in shards]
    for start, stop in slices:
        queues[next(s for s, shard in enumerate(shards) if start < shard[1] or s == len(shards) - 1)].append(
            (start, stop)
        )
    for turn in zip_longest(*queues):
        yield from (slice_ for slice_ in turn if slice_ is not None)
