"""Packing: copies the sent blocks of a flat vector into a contiguous payload, and back."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from hpcps.numerics.layout import Layout, Mask, Vector
from hpcps.numerics.vectors import DeviceVector


def runs(layout: Layout, mask: Mask) -> list[tuple[int, int]]:
    """Return the slices (start, stop) of the flat vector that the masked blocks cover; adjacent blocks are merged."""
    if mask.all():  # the usual case
        return [(0, layout.size)] if mask.size else []
    edges = np.flatnonzero(np.diff(np.concatenate(([False], mask, [False])).astype(np.int8)))
    return [(int(layout.offsets[a]), int(layout.offsets[b])) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def packed_size(layout: Layout, mask: Mask) -> int:
    """Return the number of elements of the masked blocks."""
    return int(layout.sizes[mask].sum())


def pack(layout: Layout, vector: Vector, mask: Mask, out: Vector) -> Vector:
    """Copy the masked blocks of `vector` one after another into `out`; return the filled part of `out`.

    Both may be in the memory of a device.
    """
    part: Any = out[: packed_size(layout, mask)]
    if isinstance(part, DeviceVector):
        part.device.enqueue(partial(_pack, layout, mask), part, vector)
    else:
        _pack(layout, mask, part, vector)
    return part  # type: ignore[no-any-return]


def _pack(layout: Layout, mask: Mask, out: Any, vector: Any) -> None:
    """Copy the masked blocks of an array or a tensor."""
    filled = 0
    for start, stop in runs(layout, mask):
        out[filled : filled + stop - start] = vector[start:stop]
        filled += stop - start


def unpack(layout: Layout, payload: Vector, mask: Mask, out: Vector) -> None:
    """Copy a payload of the masked blocks into their places in `out`; zero the rest of `out`."""
    taken = position = 0
    for start, stop in runs(layout, mask):
        out[position:start] = 0
        out[start:stop] = payload[taken : taken + stop - start]
        taken += stop - start
        position = stop
    out[position:] = 0
