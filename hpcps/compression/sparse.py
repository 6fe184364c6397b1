"""Compressors that send some values of a block, with their indices, as BytePS does."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field

from hpcps.compression.base import (
    Code,
    Compressor,
    DecayingCompressor,
    ErrorDecay,
    Kept,
    coding_for,
    finite,
    require_size,
)
from hpcps.numerics.coding import pack_codes, tiles, unpack_codes
from hpcps.numerics.layout import Vector
from hpcps.registry.config import MOST

Pairs = NDArray[np.uint32]
"""Indices and the bits of float32 values: `[k, 2]`."""

_NAN = np.float32(np.nan).view(np.uint32)


def _share_or_whole(k: float) -> float:
    if k >= 1 and not k.is_integer():
        raise ValueError(f"expects a share below 1 or a whole number, got {k:g}")
    return k


ShareOrNumber = Annotated[float, AfterValidator(_share_or_whole)]


class SparseCompressor(Compressor):
    """Sends k pairs of an index, a little-endian uint32, and its value, float32; all other values become zero.

    Below 1, k is a share of the block's n values, computed in float32 as BytePS does and rounded down to at least 1. At
    most n / 2 values are sent.
    """

    k: ShareOrNumber = Field(
        0.01, gt=0, le=MOST, description="Values that are sent of a block: a share below 1, or a whole number."
    )

    def count(self, n: int) -> int:
        """Return how many of n values are sent."""
        return share_count(self.k, n)

    def part_size(self, n: int) -> int:
        """Return the size of the largest part of a block of n values of which k are sent: here of the whole block."""
        return n

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

    Each block has a generator, xorshift128+ with both words set to `seed`, whose stream goes on with each encoding. All
    workers draw the same indices as long as all send the block in each round: a worker that is absent, or skips the
    block, draws nothing, and its later indices differ.
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


def share_count(k: float, n: int) -> int:
    """Return how many of n values are sent, see `SparseCompressor`."""
    share = np.float32(k) * np.float32(4 * n) / np.float32(4)
    return max(1, min(int(share) if k < 1 else int(k), n // 2))


_CHUNK = 4096
"""Values of a chunk: 12 bits of an index."""


class SparseLoco(DecayingCompressor):
    """The values of largest magnitude of each 4096, with indices of 12 bits and values of 2 bits.

    A value becomes its sign and one of two magnitudes of its chunk: the mean magnitude of those sent that are below
    their mean, or of the others. The encoding is both magnitudes of each chunk, float32, the lower one first; the
    indices within chunks, ascending, two in three bytes; then the codes, in the lower bit whether it is the higher
    magnitude and in the upper whether it is negative, four in a byte, the first in the lowest bits.
    Of the error, the share `error_decay` stays in the residual. The rule combines the decoded updates, so a mean is
    over all updates. (Sarfi et al., "Communication efficient LLM pre-training with SparseLoCo", 2025, arXiv
    2508.15706; the magnitudes are ours, as implementations differ.)
    """

    kind: Literal["sparse_loco"] = "sparse_loco"
    k: ShareOrNumber = Field(
        64, gt=0, le=_CHUNK, description="Values that are sent of 4096: a whole number, or a share below 1."
    )
    error_decay: ErrorDecay = 0.95

    def part_size(self, n: int) -> int:
        """See `SparseCompressor.part_size`: of a chunk."""
        return min(n, _CHUNK)

    def _counts(self, n: int) -> list[int]:
        """Return how many values of each chunk are sent."""
        full, rest = divmod(n, _CHUNK)
        return [share_count(self.k, _CHUNK)] * full + ([share_count(self.k, rest)] if rest else [])

    def most_bytes(self, n: int) -> int:
        counts = self._counts(n)
        return 8 * len(counts) + 3 * -(-sum(counts) // 2) + -(-sum(counts) // 4)

    def write(self, values: Vector, code: Code, kept: Kept) -> int:
        size, counts = self.most_bytes(len(values)), self._counts(len(values))
        pairs, filled = np.empty((sum(counts), 2), np.uint32), 0
        select = coding_for(len(values)).select_largest
        for chunk, count in enumerate(counts):
            bits = values[chunk * _CHUNK : (chunk + 1) * _CHUNK].view(np.uint32)
            select(bits, pairs[filled : filled + count])
            filled += count
        if not counts:
            return 0
        found, begins = pairs[:, 1].copy().view(np.float32), np.cumsum([0, *counts[:-1]])
        magnitudes = np.abs(found).astype(np.float64)
        high = ~(magnitudes < np.repeat(np.add.reduceat(magnitudes, begins) / counts, counts))
        levels = code[: 8 * len(counts)].view(np.float32).reshape(-1, 2)
        for column, those in enumerate((~high, high)):
            number = np.maximum(np.add.reduceat(those, begins, dtype=np.int64), 1)
            levels[:, column] = np.add.reduceat(np.where(those, magnitudes, 0), begins) / number
        indices = code[8 * len(counts) : 8 * len(counts) + 3 * -(-filled // 2)].reshape(-1, 3)
        first, second = np.pad(pairs[:, 0], (0, filled % 2)).reshape(-1, 2).T
        both = first | second << 12
        for byte in range(3):
            indices[:, byte] = both >> np.uint32(8 * byte) & 255
        pack_codes(high | np.signbit(found) * np.uint8(2), 2, code[size - -(-filled // 4) : size])
        return size

    def read(self, code: Code, values: Vector) -> None:
        require_size(code, self.most_bytes(len(values)))
        counts = self._counts(len(values))
        number = sum(counts)
        levels = code[: 8 * len(counts)].view(np.float32).reshape(-1, 2)
        if (levels < 0).any() or (levels[:, 0] > levels[:, 1]).any():
            raise ValueError("magnitudes that are negative or in a wrong order")
        parts = code[8 * len(counts) : 8 * len(counts) + 3 * -(-number // 2)].reshape(-1, 3).astype(np.uint32)
        both = parts[:, 0] | parts[:, 1] << 8 | parts[:, 2] << 16
        within = np.stack([both & 4095, both >> 12], axis=1).reshape(-1)
        chunks = np.repeat(np.arange(len(counts)), counts)
        if within[number:].any():
            raise ValueError("bits after the last index")
        indices = chunks * _CHUNK + within[:number]
        if number and not ((indices[1:] > indices[:-1]).all() and indices[-1] < len(values)):
            raise ValueError("indices that do not ascend, or exceed the block")
        codes = unpack_codes(code[len(code) - -(-number // 4) :], 2, number)
        found = levels[chunks, codes & 1]
        values[:] = 0
        values[indices] = np.where(codes & 2, -found, np.where(np.isfinite(found), found, np.float32(np.nan)))
