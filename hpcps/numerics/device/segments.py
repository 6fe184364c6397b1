"""The division of the flat vector into segments: each program of a kernel handles one."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hpcps.numerics.device import interpreted
from hpcps.numerics.device.updates import DeviceUpdates
from hpcps.numerics.layout import Layout, Mask

VECTOR = 4
"""Elements that one load instruction reads if their address is a multiple of 16 bytes and their number one of 4."""
LARGE = 2048
"""Elements of a segment of kernels that hold one row at a time in registers."""
INTERPRETED = 1 << 14
"""Elements of a segment in Triton's interpreter, whose time depends on the number of operations, not of elements."""

SAMPLED = 64
"""The minimum number of segments of a block that is sampled, and the maximum distance between sampled segments."""
SAMPLES = 4
"""The minimum number of sampled segments of such a block."""


def segment_size(rows: int) -> int:
    """Return the elements of a segment of a kernel that holds a number of rows in the registers of 128 threads."""
    if interpreted():
        return INTERPRETED
    return LARGE if rows == 1 else 128 * max(1, min(4, 64 // rows))


@dataclass(frozen=True, eq=False)
class Segments:
    """Segments of the blocks of a layout, on a device.

    Attributes:
        elements: the maximum number of elements of a segment.
        rows: `table` on the host.
        table: the number, the block, the first element and the number of elements of each segment: `[s, 4]` int64;
            those that are read `VECTOR` elements at a time are first.
        aligned: how many these are.
        spans: the number of the first segment of each block, and the number of all: `[B + 1]` int64.
        starts: `spans` on the host.
    """

    elements: int
    rows: NDArray[np.int64]
    table: torch.Tensor
    aligned: int
    spans: torch.Tensor
    starts: NDArray[np.int64]

    @classmethod
    def of(
        cls, elements: int, rows: NDArray[np.int64], aligned: int, starts: NDArray[np.int64], device: str
    ) -> Segments:
        """Copy the tables to a device."""
        rows, starts = np.ascontiguousarray(rows, np.int64), np.ascontiguousarray(starts, np.int64)
        table, spans = (torch.from_numpy(array).to(device) for array in (rows, starts))
        return cls(elements, rows, table, aligned, spans, starts)

    def __len__(self) -> int:
        return len(self.table)

    def launch(self, kernel: Any, *arguments: Any, **constants: Any) -> None:
        """Launch a Triton kernel for all segments: once for the aligned ones, and once for the others.

        The kernel takes the table, the arguments, and as constants `VECTOR` and `BLOCK` in addition to those given.
        """
        for part, vector in ((self.table[: self.aligned], VECTOR), (self.table[self.aligned :], 1)):
            if len(part):
                launch(kernel, len(part), part, *arguments, VECTOR=vector, BLOCK=self.elements, **constants)


def launch(kernel: Any, programs: int | tuple[int, int], *arguments: Any, **constants: Any) -> None:
    """Launch a Triton kernel on the device of its first argument."""
    first = arguments[0]
    grid = programs if isinstance(programs, tuple) else (programs,)
    if 0 in grid:
        return
    with torch.cuda.device(first.device) if first.is_cuda else nullcontext():
        # Fused multiply-adds are off, so that results do not depend on Triton's default, which changes in 3.10.
        kernel[grid](*arguments, **constants, num_warps=4, enable_fp_fusion=False)


def segments_of(updates: DeviceUpdates, elements: int, *vectors: torch.Tensor | None) -> Segments:
    """Divide the blocks of updates; `vectors` are the other tensors `[d]` that the kernel reads or writes."""
    aligned = (updates.places % 16 == 0).all(axis=0)
    return segments_of_vectors(updates.layout, elements, str(updates.device), aligned, *vectors)


def segments_of_vectors(
    layout: Layout, elements: int, device: str, aligned: Mask, *vectors: torch.Tensor | None
) -> Segments:
    """Divide the blocks of vectors `[d]`; `aligned` `[B]` are the blocks that may be read wide as far as others go."""
    for vector in vectors:
        if vector is not None:
            aligned = aligned & ((vector.data_ptr() + vector.element_size() * layout.offsets[:-1]) % 16 == 0)
    return _segments(layout, elements, device, aligned.tobytes())


@lru_cache(maxsize=64)
def _segments(layout: Layout, elements: int, device: str, aligned: bytes) -> Segments:
    blocks = layout.segments(elements)
    numbers, counts = np.arange(len(blocks)), blocks[:, 2] - blocks[:, 1]
    vectors = np.frombuffer(aligned, np.bool_)[blocks[:, 0]] & (counts % VECTOR == 0)
    order = np.argsort(~vectors, kind="stable")
    rows = np.column_stack((numbers, blocks[:, 0], blocks[:, 1], counts))[order]
    starts = np.searchsorted(blocks[:, 0], np.arange(len(layout.blocks) + 1))
    return Segments.of(elements, rows, int(vectors.sum()), starts, device)


@lru_cache(maxsize=64)
def sampled(segments: Segments) -> tuple[Segments, torch.Tensor]:
    """Return some segments of each large block, and the indices of the large blocks; see `SAMPLED`."""
    rows, counts = segments.rows, np.diff(segments.starts)
    steps = np.where(counts >= SAMPLED, np.minimum(counts // SAMPLES, SAMPLED), 0)[rows[:, 1]]
    chosen = (steps > 0) & ((rows[:, 0] - segments.starts[rows[:, 1]]) % np.maximum(steps, 1) == 0)
    device = str(segments.table.device)
    aligned = int(chosen[: segments.aligned].sum())
    part = Segments.of(segments.elements, rows[chosen], aligned, segments.starts, device)
    return part, torch.from_numpy(np.flatnonzero(counts >= SAMPLED)).to(device)
