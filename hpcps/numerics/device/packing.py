"""Packing on the device: copies the sent blocks of a flat vector into a contiguous payload, and back."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from hpcps.numerics.device.segments import launch, segment_size
from hpcps.numerics.device.upload import upload
from hpcps.numerics.layout import Layout, Mask


@triton.jit
def copy_segment(
    table: tl.tensor, source: tl.tensor, out: tl.tensor, CLEARS: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """Copy a segment: its first element in `source` (-1: zeros) and in `out`, and its number of elements: `[s, 3]`.

    If `CLEARS`, the segment of `source` is zero afterwards.
    """
    begin = tl.load(table + 3 * tl.program_id(0))
    target = tl.load(table + 3 * tl.program_id(0) + 1)
    count = tl.load(table + 3 * tl.program_id(0) + 2)
    lanes = tl.arange(0, BLOCK)
    values = tl.load(source + begin + lanes, mask=lanes < tl.where(begin >= 0, count, 0), other=0.0)
    tl.store(out + target + lanes, values, mask=lanes < count)
    if CLEARS:
        tl.debug_barrier()  # another thread may clear an element than the one that has read it
        tl.store(source + begin + lanes, tl.zeros([BLOCK], tl.float32), mask=lanes < count)


def pack(layout: Layout, vector: torch.Tensor, mask: Mask, out: torch.Tensor, *, clear: bool = False) -> torch.Tensor:
    """Copy the masked blocks of `vector` `[d]` one after another into `out`; return the filled part of `out`.

    Args:
        layout: the blocks of the d elements.
        vector: float32, contiguous.
        mask: `[B]`, on the host.
        out: float32, contiguous, with at least as many elements as the masked blocks; no part of `vector`.
        clear: whether the masked blocks of `vector` are zero afterwards, so that it is the residual.
    """
    filled = int(layout.sizes[mask].sum())
    _copy(layout, mask, vector, out, packing=True, clears=clear)
    return out[:filled]


def unpack(layout: Layout, payload: torch.Tensor, mask: Mask, out: torch.Tensor) -> None:
    """Copy a payload of the masked blocks into their places in `out` `[d]`; zero the rest of `out`."""
    _copy(layout, mask, payload, out, packing=False)


def _copy(
    layout: Layout, mask: Mask, source: torch.Tensor, out: torch.Tensor, *, packing: bool, clears: bool = False
) -> None:
    assert source.dtype == out.dtype == torch.float32, "payloads are float32"
    assert source.is_contiguous() and out.is_contiguous(), "payloads are contiguous"  # noqa: PT018
    elements = segment_size(1)
    table = _table(layout, mask.tobytes(), packing, elements)
    if len(table):
        launch(copy_segment, len(table), upload(table, out.device), source, out, CLEARS=clears, BLOCK=elements)


@lru_cache(maxsize=64)
def _table(layout: Layout, mask: bytes, packing: bool, elements: int) -> NDArray[np.int64]:
    sent = np.frombuffer(mask, np.bool_)
    sizes = np.where(sent, layout.sizes, 0)
    places = np.cumsum(sizes) - sizes
    block, start, stop = layout.segments(elements).T
    packed = places[block] + start - layout.offsets[block]
    if packing:
        rows: NDArray[np.int64] = np.column_stack((start, packed, stop - start))[sent[block]]
    else:
        rows = np.column_stack((np.where(sent[block], packed, -1), start, stop - start))
    return rows


def trial(device: str) -> None:
    """Copy one element on a device.

    Raises:
        RuntimeError: it has not arrived. Whatever Triton raises passes.
    """
    one = torch.ones(1, device=device)
    copied = pack(Layout.of([("", (1,))]), one, np.ones(1, np.bool_), torch.zeros_like(one))
    if copied.item() != 1.0:
        raise RuntimeError("a copy gave another value")
