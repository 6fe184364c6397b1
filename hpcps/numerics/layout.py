"""The model as one flat vector: its blocks and its server shards."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float32]
Mask = NDArray[np.bool_]
Allocate = Callable[[int], Vector]
"""Returns an uninitialised array with the given number of elements."""


def private(size: int) -> Vector:
    """Allocate memory that only this process can read."""
    return np.empty(size, np.float32)


@dataclass(frozen=True)
class Block:
    """One trainable tensor of the model, or the part of it that is in a shard."""

    name: str
    shape: tuple[int, ...]
    offset: int
    size: int

    @property
    def stop(self) -> int:
        """The index after the block's last element in the flat vector."""
        return self.offset + self.size


@dataclass(frozen=True)
class Layout:
    """The table of blocks that fill one flat float32 vector of `size` elements without gaps."""

    blocks: tuple[Block, ...]

    @classmethod
    def of(cls, shapes: Sequence[tuple[str, Sequence[int]]]) -> Layout:
        """Return the layout of tensors, given as (name, shape), one after another."""
        blocks, offset = [], 0
        for name, shape in shapes:
            size = math.prod(map(int, shape))
            blocks.append(Block(name, tuple(int(n) for n in shape), offset, size))
            offset += size
        return cls(tuple(blocks))

    @classmethod
    def of_sizes(cls, blocks: Sequence[int], size: int) -> Layout:
        """Return the layout of updates outside of a run, from the sizes of their blocks.

        Raises:
            ValueError: the sizes are not whole numbers from 0, or do not add up to `size` elements.
        """
        sizes = np.asarray(blocks)
        if sizes.ndim != 1 or (sizes.size and (sizes.dtype.kind not in "iu" or sizes.min() < 0)):
            raise ValueError("blocks must be whole numbers from 0, such as [2, 3]: the size of each block")
        layout = cls.of([(str(i), (block,)) for i, block in enumerate(sizes.tolist())])
        if layout.size != size:
            raise ValueError(f"blocks add up to {layout.size} elements, the updates have {size}")
        return layout

    @property
    def size(self) -> int:
        """The number of elements of the vector, d."""
        return self.blocks[-1].stop if self.blocks else 0

    @cached_property
    def offsets(self) -> NDArray[np.int64]:
        """The start of each block, and the end of the last: `[B + 1]`."""
        return np.array([block.offset for block in self.blocks] + [self.size], dtype=np.int64)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The number of elements of each block: `[B]`."""
        return np.diff(self.offsets)

    @cached_property
    def _segments(self) -> dict[int, NDArray[np.int64]]:
        return {}

    def segments(self, most: int) -> NDArray[np.int64]:
        """Divide every block, from its start, into segments of at most `most` elements.

        Returns:
            The block, the first element and the element after the last of each segment: `[s, 3]`.
        """
        if most not in self._segments:
            counts = -(-self.sizes // most)
            block = np.repeat(np.arange(len(counts)), counts)
            within = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
            start = self.offsets[block] + within * most
            stop = np.minimum(start + most, self.offsets[block + 1])
            self._segments[most] = np.column_stack((block, start, stop)).astype(np.int64)
        return self._segments[most]

    def bounds(self, shards: int | Sequence[int], *, whole: bool = False) -> tuple[tuple[int, int], ...]:
        """Divide the vector into server shards: (start, stop) of each.

        Args:
            shards: the number of shards, whose sizes then differ by a cache line at most; or the size of each shard
                relative to the others.
            whole: whether shards consist of whole blocks; their sizes are then as near as the blocks allow, and may
                be 0.
        """
        ends = range(shards + 1) if isinstance(shards, int) else [0, *accumulate(shards)]
        cuts = [min(self.size, -(-self.size * end // ends[-1] // 16) * 16) for end in ends[:-1]] + [self.size]
        if whole:
            cuts = [min(self.offsets.tolist(), key=lambda offset: abs(offset - cut)) for cut in cuts]
        return tuple(pairwise(cuts))

    def restrict(self, start: int, stop: int) -> Layout:
        """Return the layout of the slice `[start, stop)`: whole blocks, and flat parts of blocks that it divides."""
        pieces = []
        for block in self.blocks:
            low, high = max(block.offset, start), min(block.stop, stop)
            if low < high:
                whole = high - low == block.size
                pieces.append(Block(block.name, block.shape if whole else (high - low,), low - start, high - low))
        return Layout(tuple(pieces))

    def first_in(self, start: int) -> int:
        """Return the index of the first block that has elements from `start` on."""
        return int(np.searchsorted(self.offsets, start, side="right")) - 1

    def runs(self, mask: Mask) -> list[tuple[int, int]]:
        """Return the slices (start, stop) of the vector that the masked blocks cover; adjacent blocks are merged."""
        if mask.all():  # the usual case
            return [(0, self.size)] if mask.size else []
        edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
        return [(int(self.offsets[a]), int(self.offsets[b])) for a, b in zip(edges[::2], edges[1::2], strict=True)]

    def packed_size(self, mask: Mask) -> int:
        """Return the number of elements of the masked blocks."""
        return int(self.sizes[mask].sum())

    def spread(self, mask: Mask) -> Mask:
        """Expand a mask over blocks `[B]` to one over elements `[d]`."""
        return np.repeat(mask, self.sizes)

    def to_json(self) -> list[list[Any]]:
        """Return the table as JSON: a `[name, shape]` pair per block."""
        return [[block.name, list(block.shape)] for block in self.blocks]

    @classmethod
    def from_json(cls, table: list[list[Any]]) -> Layout:
        """Rebuild the layout that `to_json` described."""
        return cls.of([(name, shape) for name, shape in table])


def hexadecimal(mask: Mask, first: int = 0) -> str:
    """Return a mask `[B]` as a hexadecimal number whose bit `first + b` is block b."""
    return format(int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little") << first, "x")
