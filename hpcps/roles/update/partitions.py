"""The partitions of a worker's update: each is sent to one combiner, as one message."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcps.numerics.layout import Allocate, Layout, Mask, Vector
from hpcps.numerics.vectors import finite, pack
from hpcps.protocol.messages import Peer
from hpcps.protocol.partitioning import Partition
from hpcps.protocol.roster import partitioning_of
from hpcps.spec.schema import Run


@dataclass(frozen=True)
class UpdatePart:
    """One partition of an update: its combiner, its number there, the mask of its sent blocks, and their payload.

    Until `Packer.encode` encodes it, the payload is these blocks, one after another.
    """

    combiner: Peer
    number: int
    mask: Mask
    payload: Vector


class UpdatePartitions:
    """Cuts the sent blocks of an update into partitions.

    Attributes:
        all: the partitions in the order in which they are sent: in turns, so that all combiners work at the same time.
    """

    def __init__(self, run: Run, combiners: tuple[Peer, ...], layout: Layout, allocate: Allocate) -> None:
        """Prepare the partitions of the updates to these combiners; `allocate` returns memory to send from."""
        updates = partitioning_of(run, layout).updates
        numbered = sorted((n, combiner) for combiner in combiners for n in range(len(updates[combiner.index])))
        self._receivers = tuple((combiner, n) for n, combiner in numbered)
        self.all = tuple(Partition.of(layout, updates[combiner.index][n]) for n, combiner in numbered)
        self._layout = layout
        self._outgoing = allocate(layout.size)
        # The payloads of partitions are contiguous in the payload of the whole update, in the order of their columns.
        self._positions = sorted(range(len(self.all)), key=lambda n: self.all[n].columns.start)
        # The blocks that are sent in several partitions, to one combiner or to several servers.
        pieces: dict[int, list[slice]] = {}
        for partition in self.all:
            for index, block in enumerate(partition.layout.blocks, partition.blocks.start):
                start = partition.columns.start + block.offset
                pieces.setdefault(index, []).append(slice(start, start + block.size))
        self._divided = tuple((index, slices) for index, slices in pieces.items() if len(slices) > 1)

    def whole(self, values: Vector, sent: Mask) -> Vector:
        """Return the sent blocks of a vector `[d]`, one after another, in the memory that is sent from."""
        return pack(self._layout, values, sent, self._outgoing)

    def cut(self, values: Vector, sent: Mask) -> tuple[tuple[UpdatePart, ...], Vector]:
        """Return the partitions of the sent blocks of a vector `[d]`, and these blocks, one after another."""
        self.spoil_divided(values, sent)
        payload = self.whole(values, sent)
        parts: dict[int, UpdatePart] = {}
        position = 0
        for place in self._positions:
            partition = self.all[place]
            mask = sent[partition.blocks]
            stop = position + partition.layout.packed_size(mask)
            parts[place] = UpdatePart(*self._receivers[place], mask, payload[position:stop])
            position = stop
        return tuple(parts[place] for place in range(len(parts))), payload

    def nothing(self) -> Vector:
        """Return the payload of an update without blocks."""
        return self._outgoing[:0]

    def spoil_divided(self, values: Vector, sent: Mask) -> None:
        """Make the sent blocks of a vector `[d]` that are divided and not finite NaN.

        Combiners refuse a block that is not finite as a whole, so every partition of it must be not finite.
        """
        for index, slices in self._divided:
            if sent[index] and not all(finite(values[piece]) for piece in slices):
                for piece in slices:
                    values[piece] = np.nan
