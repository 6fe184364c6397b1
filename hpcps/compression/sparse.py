"""Compressors that send some values of a block, with their indices, as BytePS does."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hpcps.compression.base import Code, Compressor, Kept, require_size
from hpcps.numerics import coding, kernels
from hpcps.numerics.layout import Vector
from hpcps.registry.config import MOST

Indices = NDArray[np.uint32]


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
        if not size:
            return 0
        pairs = code[:size].view(np.uint32).reshape(-1, 2)
        chosen, found = np.empty(len(pairs), np.uint32), np.empty(len(pairs), np.float32)
        self._choose(values, chosen, found, kept)
        if not np.isfinite(values).all():
            found[:] = np.nan  # whichever values are sent, and also if an index occurs twice
        pairs[:, 0] = chosen
        pairs[:, 1] = found.view(np.uint32)
        return size

    @abstractmethod
    def _choose(self, values: Vector, chosen: Indices, found: Vector, kept: Kept) -> None:
        """Write the indices and the values that are sent."""

    def read(self, code: Code, values: Vector) -> None:
        require_size(code, self.most_bytes(len(values)))
        pairs = code.view(np.uint32).reshape(-1, 2)
        if len(pairs) and pairs[:, 0].max() >= len(values):
            raise ValueError(f"an index of {pairs[:, 0].max()} in a block of {len(values)}")
        values[:] = 0
        values[pairs[:, 0]] = pairs[:, 1].copy().view(np.float32)


class Topk(SparseCompressor):
    """The k values of largest magnitude of a block; the bytes are those of BytePS 0.2.5."""

    kind: Literal["topk"] = "topk"

    def _choose(self, values: Vector, chosen: Indices, found: Vector, kept: Kept) -> None:
        if kernels.enough(len(values)):
            from hpcps.numerics.kernels.coding import select_largest

            select_largest(values, chosen, found)
        else:
            coding.select_largest(values, chosen, found)

    def read(self, code: Code, values: Vector) -> None:
        super().read(code, values)
        indices = code.view(np.uint32)[::2]
        seen = np.zeros(len(values), np.bool_)
        seen[indices] = True
        if np.count_nonzero(seen) != len(indices):
            raise ValueError("an index that occurs twice")


class Randomk(SparseCompressor):
    """The values at k random indices, drawn with replacement; the bytes are those of BytePS 0.2.5.

    Each block has a generator, xorshift128+ with both words set to `seed`, whose stream goes on from update to update.
    All workers draw the same indices.
    """

    kind: Literal["randomk"] = "randomk"
    seed: int = Field(1, ge=1, le=2**32 - 1, description="Seed of the generator of each block.")

    def _choose(self, values: Vector, chosen: Indices, found: Vector, kept: Kept) -> None:
        state = kept.setdefault("generator", np.full(2, self.seed, np.uint64))
        if kernels.enough(len(chosen)):
            from hpcps.numerics.kernels.coding import draw_indices

            draw_indices(state, len(values), chosen)
        else:
            with np.errstate(over="ignore"):
                coding.draw_indices(state, len(values), chosen)
        found[:] = values[chosen]
