"""Compressors that send some values of a block, with their indices, as BytePS does."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hpcps.compression.base import Code, Compressor, Kept, coding_for, finite, require_size
from hpcps.numerics.coding import tiles
from hpcps.numerics.layout import Vector
from hpcps.registry.config import MOST

Pairs = NDArray[np.uint32]
"""Indices and the bits of float32 values: `[k, 2]`."""

_NAN = np.float32(np.nan).view(np.uint32)


class SparseCompressor(Compressor):
    """Sends k pairs of an index, a little-endian uint32, and its value, float32; all other values become zero.

    Below 1, k is a share of the block's n values, computed in float32 as BytePS does and rounded down to at least 1. At
    most n / 2 values are sent.
    """

    k: float = Field(0.01, gt=0, le=MOST, description="Values that are sent of a block: a share below 1, or a number.")

    def count(self, n: int) -> int:
        """Return how many of n values are sent."""
        share = np.float32(self.k) * np.float32(4 * n) / np.float32(4)
        return max(1, min(int(share) if self.k < 1 else int(self.k), n // 2))

    def most_bytes(self, n: int) -> int:
        return 8 * self.count(n) if n else 0

    def write(self, values: Vector, code: Code, kept: Kept) -> int:
        size = self.most_bytes(len(values))
        if size:
            self._choose(values, code[:size].view(np.uint32).reshape(-1, 2), kept)
        return size

    @abstractmethod
    def _choose(self, values: Vector, pairs: Pairs, kept: Kept) -> None:
        """Write the indices and the bits of the values that are sent."""

    def read(self, code: Code, values: Vector) -> None:
        require_size(code, self.most_bytes(len(values)))
        pairs = code.view(np.uint32).reshape(-1, 2)
        if len(pairs) and pairs[:, 0].max() >= len(values):
            raise ValueError(f"an index of {pairs[:, 0].max()} in a block of {len(values)}")
        values[:] = 0
        for tile in tiles(len(pairs)):
            values[pairs[tile, 0]] = pairs[tile, 1].view(np.float32)


class Topk(SparseCompressor):
    """The k values of largest magnitude of a block.

    The bytes with `order = "heap"` are those of BytePS 0.2.5. With `index` the indices ascend, and of equal magnitudes
    the first ones are sent.
    """

    kind: Literal["topk"] = "topk"
    order: Literal["index", "heap"] = Field(
        "index",
        description="The order of the values: that of their indices, or that of BytePS's heap, which is slower.",
    )

    def _choose(self, values: Vector, pairs: Pairs, kept: Kept) -> None:
        loops = coding_for(len(values), looped=self.order == "heap")
        if self.order == "index":
            loops.select_largest(values.view(np.uint32), pairs)
            return
        chosen, found = np.empty(len(pairs), np.uint32), np.empty(len(pairs), np.float32)
        loops.select_by_heap(values, chosen, found)
        if not finite(values):
            found[:] = np.nan  # the heap may pass over NaN
        pairs[:, 0], pairs[:, 1] = chosen, found.view(np.uint32)

    def read(self, code: Code, values: Vector) -> None:
        super().read(code, values)
        indices = code.view(np.uint32)[::2]
        ordered = indices if self.order == "index" else np.sort(indices)
        if not (ordered[1:] > ordered[:-1]).all():
            raise ValueError("an index that occurs twice or in a wrong order")


class Randomk(SparseCompressor):
    """The values at k random indices, drawn with replacement; the bytes are those of BytePS 0.2.5.

    Each block has a generator, xorshift128+ with both words set to `seed`, whose stream goes on from update to update.
    All workers draw the same indices.
    """

    kind: Literal["randomk"] = "randomk"
    seed: int = Field(1, ge=1, le=2**32 - 1, description="Seed of the generator of each block.")

    def _choose(self, values: Vector, pairs: Pairs, kept: Kept) -> None:
        state = kept.setdefault("generator", np.full(2, self.seed, np.uint64))
        chosen = np.empty(len(pairs), np.uint32)
        with np.errstate(over="ignore"):
            coding_for(len(pairs), looped=True).draw_indices(state, len(values), chosen)
        pairs[:, 0] = chosen
        # Values that are not finite must show, whichever are sent.
        pairs[:, 1] = values.view(np.uint32)[chosen] if finite(values) else _NAN
