"""Changes of some blocks of a flat vector on the device, in place; each is a launch or two, and none waits.

Arguments that the kernels have:
    table: see `Segments`.
    vector: the vector `[d]` float32.
    chosen: only blocks with a value other than 0 are read or changed: `[B]` int32.
    number: a float64 in memory, because Triton rounds numbers that are passed to float32.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from hpcps.numerics.device.segments import Segments, segment_size, segments_of_vectors
from hpcps.numerics.device.upload import upload
from hpcps.numerics.layout import Layout, Mask

Tensor = torch.Tensor


@triton.jit
def change_segment(
    table: tl.tensor,
    vector: tl.tensor,
    chosen: tl.tensor,
    number: tl.tensor,
    SCALES: tl.constexpr,
    VECTOR: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Multiply a segment by the number in float64 if `SCALES`, else fill the segment with the number."""
    block = tl.load(table + 4 * tl.program_id(0) + 1)
    start = tl.load(table + 4 * tl.program_id(0) + 2)
    count = tl.load(table + 4 * tl.program_id(0) + 3)
    if tl.load(chosen + block) == 0:
        return
    lanes = tl.arange(0, BLOCK)
    places = vector + start + lanes
    if VECTOR > 1:
        count = tl.multiple_of(count, VECTOR)
        places = tl.max_contiguous(tl.multiple_of(places, 16), BLOCK)
    values = tl.zeros([BLOCK], tl.float64) + tl.load(number)
    if SCALES:
        values *= tl.load(places, mask=lanes < count, other=0.0).to(tl.float64)
    tl.store(places, values.to(tl.float32), mask=lanes < count)


@triton.jit
def examine_segment(
    table: tl.tensor,
    vector: tl.tensor,
    chosen: tl.tensor,
    dirty: tl.tensor,
    VECTOR: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write 1 in `dirty` `[B]` int32 for each chosen block that is not finite; programs that do so write the same."""
    block = tl.load(table + 4 * tl.program_id(0) + 1)
    start = tl.load(table + 4 * tl.program_id(0) + 2)
    count = tl.load(table + 4 * tl.program_id(0) + 3)
    if tl.load(chosen + block) == 0:
        return
    lanes = tl.arange(0, BLOCK)
    places = vector + start + lanes
    if VECTOR > 1:
        count = tl.multiple_of(count, VECTOR)
        places = tl.max_contiguous(tl.multiple_of(places, 16), BLOCK)
    values = tl.load(places, mask=lanes < count, other=0.0)
    if tl.max((values - values != 0.0).to(tl.int32), axis=0) != 0:
        tl.store(dirty + block, 1)


@triton.jit
def place_segment(
    table: tl.tensor,
    vector: tl.tensor,
    payload: tl.tensor,
    shifts: tl.tensor,
    chosen: tl.tensor,
    number: tl.tensor,
    overflow: tl.tensor,
    ADDS: tl.constexpr,
    VECTOR: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write a segment of the payload into the vector; if `ADDS`, add it there, multiplied by the number in float32.

    Args:
        payload: the chosen blocks, one after another, float32.
        shifts: the position of each block in the payload minus that in the vector: `[B]` int64.
        overflow: the output: whether a segment of the vector is not finite afterwards: `[s]` int32; only if `ADDS`.
    """
    number_of = tl.load(table + 4 * tl.program_id(0))
    block = tl.load(table + 4 * tl.program_id(0) + 1)
    start = tl.load(table + 4 * tl.program_id(0) + 2)
    count = tl.load(table + 4 * tl.program_id(0) + 3)
    if tl.load(chosen + block) == 0:
        return
    lanes = tl.arange(0, BLOCK)
    places = vector + start + lanes
    source = payload + start + tl.load(shifts + block) + lanes
    if VECTOR > 1:
        count = tl.multiple_of(count, VECTOR)
        places = tl.max_contiguous(tl.multiple_of(places, 16), BLOCK)
        source = tl.max_contiguous(tl.multiple_of(source, 16), BLOCK)
    values = tl.load(source, mask=lanes < count, other=0.0)
    if ADDS:
        values = tl.load(places, mask=lanes < count, other=0.0) + values * tl.load(number).to(tl.float32)
        tl.store(overflow + number_of, tl.max((values - values != 0.0).to(tl.int32), axis=0))
    tl.store(places, values, mask=lanes < count)


def clear(layout: Layout, vector: Tensor, mask: Mask) -> None:
    """Set the masked blocks to zero."""
    fill(layout, vector, mask, 0.0)


def fill(layout: Layout, vector: Tensor, mask: Mask, value: float) -> None:
    """Set every element of the masked blocks to a value, which need not be finite.

    Args:
        layout: the blocks of the d elements.
        vector: `[d]` float32, contiguous.
        mask: `[B]`, on the host.
        value: the value.
    """
    _change(layout, vector, _chosen(mask, vector), value, scales=False)


def scale(layout: Layout, vector: Tensor, mask: Mask, factor: float) -> None:
    """Multiply the masked blocks by a factor in float64, and round; for the arguments see `fill`."""
    _change(layout, vector, _chosen(mask, vector), factor, scales=True)


def spoil(layout: Layout, vector: Tensor, mask: Mask) -> None:
    """Set all of each masked block to NaN that holds a value that is not finite; for the arguments see `fill`."""
    chosen = _chosen(mask, vector)
    dirty = torch.zeros_like(chosen)
    _segments(layout, vector).launch(examine_segment, vector, chosen, dirty)
    _change(layout, vector, dirty, np.nan, scales=False)


def put(layout: Layout, payload: Tensor, mask: Mask, vector: Tensor) -> None:
    """Copy a payload of the masked blocks into their places; the other blocks stay. For the arguments see `add`."""
    _place(layout, payload, mask, vector, 1.0, adds=False)


def add(layout: Layout, payload: Tensor, mask: Mask, vector: Tensor, weight: float = 1.0) -> Tensor:
    """Add a payload of the masked blocks, multiplied by a weight in float32, to these blocks of a vector.

    Args:
        layout: the blocks of the d elements.
        payload: the masked blocks, one after another: float32, contiguous.
        mask: `[B]`, on the host.
        vector: `[d]` float32, contiguous.
        weight: the weight, which is rounded to float32.

    Returns:
        Whether the masked blocks of the vector are finite afterwards: `[]` bool, on the device.
    """
    return ~_place(layout, payload, mask, vector, weight, adds=True).any()


def _change(layout: Layout, vector: Tensor, chosen: Tensor, number: float, *, scales: bool) -> None:
    _segments(layout, vector).launch(change_segment, vector, chosen, _number(number, vector), SCALES=scales)


def _place(layout: Layout, payload: Tensor, mask: Mask, vector: Tensor, weight: float, *, adds: bool) -> Tensor:
    sizes = np.where(mask, layout.sizes, 0)
    assert payload.shape == (sizes.sum(),), "a payload holds the masked blocks, and nothing else"
    assert payload.dtype == torch.float32, "payloads are float32"
    assert payload.is_contiguous(), "payloads are contiguous"
    assert payload.device == vector.device, "payload and vector are on one device"
    shifts = np.cumsum(sizes) - sizes - layout.offsets[:-1]
    aligned = (payload.data_ptr() + 4 * (shifts + layout.offsets[:-1])) % 16 == 0
    segments = _segments(layout, vector, aligned)
    overflow = torch.zeros(len(segments), dtype=torch.int32, device=vector.device)
    arguments = (payload, upload(shifts, vector.device), _chosen(mask, vector), _number(weight, vector), overflow)
    segments.launch(place_segment, vector, *arguments, ADDS=adds)
    return overflow != 0


def _segments(layout: Layout, vector: Tensor, aligned: Mask | None = None) -> Segments:
    assert vector.dtype == torch.float32, "vectors are float32"
    assert vector.shape == (layout.size,), "vectors are flat"
    assert vector.is_contiguous(), "vectors are contiguous"
    everywhere = np.ones(len(layout.blocks), np.bool_) if aligned is None else aligned
    return segments_of_vectors(layout, segment_size(1), str(vector.device), everywhere, vector)


def _chosen(mask: Mask, vector: Tensor) -> Tensor:
    return upload(mask.astype(np.int32), vector.device)


def _number(value: float, vector: Tensor) -> Tensor:
    return torch.full((1,), value, dtype=torch.float64, device=vector.device)
