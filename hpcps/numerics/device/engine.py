"""The operations of the rules on the device: means, ordered means, screening. None of them waits for the device.

A mean first reads all updates, and notes blocks that are not finite. A second and a third launch reject those blocks
and combine the rest anew; without such blocks, their programs end at once. So there is one pass in the usual case.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
import triton.language as tl

from hpcps.numerics.device.coordinates import average_segment, ordered_segment, screen_segment
from hpcps.numerics.device.segments import Segments, segment_size, segments_of
from hpcps.numerics.device.updates import DeviceUpdates
from hpcps.numerics.layout import Layout
from hpcps.numerics.sorting import comparators, needed

MOST_SORTED = 64
"""The maximum number of updates that are sorted in registers."""
AVERAGED = 2
"""The rows by which the segments of a mean are sized."""
STEP = 8
"""Rows of a mean that are loaded at a time."""

Tensor = torch.Tensor


@dataclass(frozen=True)
class DeviceMean:
    """A mean of updates, on the device.

    Attributes:
        update: the mean `[d]` float32; or, if there was a base, the sum of the base and the mean.
        kept: the addresses of the blocks that are in the mean, 0 for the others: `[n, B]`.
        overflow: whether a segment's sum with the base is not finite: `[s]` int32.
    """

    update: Tensor
    kept: Tensor
    overflow: Tensor


def average(updates: DeviceUpdates, base: Tensor | None = None, out: Tensor | None = None) -> DeviceMean:
    """Compute the mean of the updates; blocks that are not finite count as zero.

    Args:
        updates: n > 0 updates.
        base: the vector `[d]` float32 to which the mean is added, if any.
        out: the array `[d]` float32 for the result; by default a new one. It may be the base.
    """
    out = destination(updates, base, out)
    segments = segments_of(updates, segment_size(AVERAGED), base, out)
    overflow = flags(len(segments), updates)
    divisors = torch.full((len(updates.layout.blocks),), float(len(updates)), dtype=torch.float64, device=out.device)

    def combine(addresses: Tensor, dirty: Tensor, guard: Tensor) -> None:
        average_blocks(updates, segments, addresses, divisors, base, out, dirty, guard, overflow)

    return DeviceMean(out, screened(updates, combine, in_place=overlap(base, out)), overflow)


def ordered(
    updates: DeviceUpdates,
    low: int,
    high: int,
    base: Tensor | None = None,
    out: Tensor | None = None,
    *,
    nearest: bool = False,
) -> DeviceMean:
    """Compute, per coordinate, the mean of the sorted values of ranks `low` to `high` (exclusive).

    If `nearest`, compute the mean of the `high` values nearest to that mean instead, where high = n - low. There are at
    most `MOST_SORTED` updates. For the other arguments see `average`.
    """
    n = len(updates)
    out = destination(updates, base, out)
    segments = segments_of(updates, segment_size(n), base, out)
    overflow = flags(len(segments), updates)
    keys = {"N": n, "NETWORK": network(n, *((0, n) if nearest else (low, high))), "LOW": low, "HIGH": high}

    def combine(addresses: Tensor, dirty: Tensor, guard: Tensor) -> None:
        segments.launch(
            ordered_segment,
            *(addresses, offsets(updates.layout, updates.device), base, out, dirty, guard, overflow),
            *(len(updates.layout.blocks),),
            **keys,
            NEAREST=nearest,
            DTYPE=kind(updates),
        )

    return DeviceMean(out, screened(updates, combine, in_place=overlap(base, out)), overflow)


def screen(updates: DeviceUpdates, guard: Tensor) -> Tensor:
    """Return the addresses of the blocks that are finite, 0 for the others: `[n, B]`.

    Args:
        updates: n > 0 updates.
        guard: only blocks with a value other than 0 are examined: `[B]` int32.
    """
    kept, segments = updates.addresses.clone(), segments_of(updates, segment_size(1))
    segments.launch(
        screen_segment,
        *(updates.addresses, offsets(updates.layout, updates.device), kept, guard),
        *(len(updates), len(updates.layout.blocks)),
        DTYPE=kind(updates),
    )
    return kept


def nothing(updates: DeviceUpdates, base: Tensor | None, out: Tensor | None) -> DeviceMean:
    """Return the result for too few updates: zero; they are checked for finiteness all the same."""
    kept = updates.addresses if updates.checked else screen(updates, flags(len(updates.layout.blocks), updates) + 1)
    out = destination(updates, base, out)
    if base is None:
        out.zero_()
    elif out is not base:
        out.copy_(base)
    return DeviceMean(out, kept, (~torch.isfinite(out).all()).reshape(1))


def average_blocks(
    updates: DeviceUpdates,
    segments: Segments,
    addresses: Tensor,
    divisors: Tensor,
    base: Tensor | None,
    out: Tensor,
    dirty: Tensor,
    guard: Tensor,
    overflow: Tensor,
) -> None:
    """Launch the kernel of a mean; see `coordinates.average_segment`."""
    segments.launch(
        average_segment,
        *(addresses, offsets(updates.layout, updates.device), divisors, base, out, dirty, guard, overflow),
        *(len(updates), len(updates.layout.blocks)),
        STEP=STEP,
        DTYPE=kind(updates),
    )


def screened(updates: DeviceUpdates, combine: Callable[[Tensor, Tensor, Tensor], None], *, in_place: bool) -> Tensor:
    """Combine updates, again without the blocks that are not finite if there are any; return `DeviceMean.kept`.

    If the result replaces the base, the updates are screened first, because they cannot be combined twice.
    """
    dirty = flags(len(updates.layout.blocks), updates)
    everywhere = dirty + 1
    if in_place and not updates.checked:
        kept = screen(updates, everywhere)
        combine(kept, dirty, everywhere)
        return kept
    combine(updates.addresses, dirty, everywhere)
    if updates.checked:
        return updates.addresses
    kept = screen(updates, dirty)
    combine(kept, dirty, dirty)
    return kept


@lru_cache(maxsize=256)
def network(n: int, low: int, high: int) -> tuple[int, ...]:
    """Return the comparators that sort n rows as far as the ranks `low` to `high` (exclusive) need it, in one tuple."""
    return tuple(row for pair in needed(comparators(n), range(low, high)) for row in pair)


@lru_cache(maxsize=64)
def offsets(layout: Layout, device: torch.device) -> Tensor:
    """Return the first element of each block, on the device: `[B]`."""
    return torch.from_numpy(layout.offsets[:-1].copy()).to(device)


def kind(updates: DeviceUpdates) -> Any:
    """Return the element type of the updates as Triton's."""
    return getattr(tl, str(updates.payloads[0].dtype).removeprefix("torch."))


def flags(count: int, updates: DeviceUpdates) -> Tensor:
    """Return `count` int32 that are 0."""
    return torch.zeros(count, dtype=torch.int32, device=updates.device)


def destination(updates: DeviceUpdates, base: Tensor | None, out: Tensor | None) -> Tensor:
    """Return the array for the result, which is a new one if `out` is None."""
    if out is None:
        out = torch.empty(updates.layout.size, device=updates.device)
    for array in (out,) if base is None else (out, base):
        assert array.dtype == torch.float32, "models are float32"
        assert array.shape == (updates.layout.size,), "models are flat"
        assert array.is_contiguous(), "models are contiguous"
        assert array.device == updates.device, "models and updates are on one device"
    return out


def overlap(base: Tensor | None, out: Tensor) -> bool:
    """Return whether the result is written where the base is."""
    if base is None:
        return False
    size = 4 * out.numel()
    return base.data_ptr() < out.data_ptr() + size and out.data_ptr() < base.data_ptr() + size
