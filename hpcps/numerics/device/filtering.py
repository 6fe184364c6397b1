"""The operations on the device of rules that compare updates with the validator's own update."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from hpcps.numerics.device.engine import Tensor, average_blocks, destination, flags, kind, offsets, overlap
from hpcps.numerics.device.scores import accept_similar, add_segments, clip_and_negate, multiply_segment, scale_segment
from hpcps.numerics.device.segments import Segments, launch, sampled, segment_size, segments_of
from hpcps.numerics.device.updates import DeviceUpdates
from hpcps.numerics.device.upload import upload

SMALLEST_SAMPLED = 1 << 24
"""The minimum number of elements of all updates for which a sample predicts the accepted ones."""
STEP = 2
"""Rows that are multiplied at a time."""
CHUNK = 1024
"""Sums of segments that are added at a time."""
DECIDED = 128
"""Blocks on which a program decides."""


@dataclass(frozen=True)
class DeviceAccepted:
    """The mean of the accepted updates, on the device.

    Attributes:
        update: the mean `[d]` float32; or, if there was a base, the sum of the base and the mean.
        accepted: the accepted (update, block) pairs: `[n, B]` int32.
        refused: the pairs that are not finite: `[n, B]` bool.
        overflow: whether a segment's sum with the base is not finite: `[s]` int32.
    """

    update: Tensor
    accepted: Tensor
    refused: Tensor
    overflow: Tensor


def mean_of_similar(
    updates: DeviceUpdates, v: Tensor, rho: float, excess: float, base: Tensor | None = None, out: Tensor | None = None
) -> DeviceAccepted:
    """Compute, per block, the mean of the updates u with <u, v> > rho |v|^2 and |u|^2 < excess |v|^2.

    The accepted pairs are predicted, so that one pass computes the products and the mean: by a sample of large blocks
    if there are many elements, else all are. Blocks for which this was wrong are averaged again. If `out` is the base,
    there is no prediction, because the first pass would overwrite the base. Blocks that are not finite count as zero.

    Args:
        updates: n > 0 updates.
        v: the vector `[d]` float32 that they are compared with; its values need not be finite.
        rho: see above.
        excess: see above.
        base: the vector `[d]` float32 to which the mean is added, if any.
        out: the array `[d]` float32 for the result; by default a new one.
    """
    n, blocks = len(updates), len(updates.layout.blocks)
    out = destination(updates, base, out)
    apart = not overlap(base, out)
    segments = segments_of(updates, segment_size(1), v, base, out)
    overflow = flags(len(segments), updates)
    thresholds = upload(np.array([rho, excess]), out.device)
    present = (updates.addresses != 0) if rho >= 0 else torch.ones_like(updates.addresses, dtype=torch.bool)
    accepted, chosen = present.to(torch.int32), updates.addresses.clone()
    divisors = accepted.sum(0).clamp(min=1).to(torch.float64)
    changed = flags(blocks, updates)

    def decide(which: Tensor, totals: Tensor) -> None:
        rows = 1 << (n - 1).bit_length()
        arguments = (totals, updates.addresses, thresholds, accepted, chosen, divisors, changed)
        launch(accept_similar, len(which), which, *arguments, n, blocks, ROWS=rows)

    if apart and n * updates.layout.size >= SMALLEST_SAMPLED:
        sample, large = sampled(segments)
        if len(large):
            decide(large, products(updates, sample, v, len(segments)))
    mean = (divisors, chosen, base, out, overflow) if apart else (None,) * 5
    totals = products(updates, segments, v, len(segments), *mean)
    decide(torch.arange(blocks, device=out.device), totals)
    again = changed if apart else torch.ones_like(changed)
    average_blocks(updates, segments, chosen, divisors, base, out, flags(blocks, updates), again, overflow)
    return DeviceAccepted(out, accepted, ~torch.isfinite(totals[1 : 2 * n : 2]), overflow)


def products(
    updates: DeviceUpdates,
    segments: Segments,
    v: Tensor,
    number: int,
    divisors: Tensor | None = None,
    chosen: Tensor | None = None,
    base: Tensor | None = None,
    out: Tensor | None = None,
    overflow: Tensor | None = None,
) -> Tensor:
    """Compute the products of each update with v per block, and the mean of the chosen updates in the same pass.

    Args:
        updates: n updates.
        segments: all segments of the blocks, or some of them.
        v: `[d]` float32.
        number: the number of all segments.
        divisors: see `scores.multiply_segment`, for this and the other arguments.
        chosen: the addresses of the updates in the mean.
        base: what the mean is added to.
        out: the mean.
        overflow: whether a segment's sum with the base is not finite.

    Returns:
        <u, v> and |u|^2 of each update and, last, twice |v|^2: `[2 (n + 1), B]` float64. |u|^2 is finite if and only if
        the block is. Equal updates have equal products, so |u|^2 = <u, v> = |v|^2 if u = v.
    """
    n, layout = len(updates), updates.layout
    blocks, rows = len(layout.blocks), 2 * (n + 1)
    sums = torch.zeros((rows, number), dtype=torch.float64, device=updates.device)
    totals = torch.empty((rows, blocks), dtype=torch.float64, device=updates.device)
    segments.launch(
        multiply_segment,
        *(updates.addresses, offsets(layout, updates.device), v, sums, divisors, chosen, base, out, overflow),
        *(n, blocks, number),
        STEP=STEP,
        DTYPE=kind(updates),
    )
    if blocks:
        launch(add_segments, (blocks, rows), segments.spans, sums, totals, blocks, number, CHUNK=CHUNK)
    return totals


def clip_or_negate(update: DeviceUpdates, v: Tensor, threshold: float, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Decide on the blocks of one update as Zeno++ does, and write what is applied to `out` `[d]` float32.

    Args:
        update: one update; blocks that are not finite are not applied.
        v: the vector `[d]` float32 that it is compared with; its values need not be finite.
        threshold: the cosine below which a block is negated.
        out: the array for the result: zero where no block is applied. It may be the update.

    Returns:
        The applied blocks, the negated ones of them, and the blocks that are not finite: `[B]` bool, on the device.
    """
    blocks = len(update.layout.blocks)
    segments = segments_of(update, segment_size(1), v, out)
    totals = products(update, segments, v, len(segments))
    limit = torch.full((1,), threshold, dtype=torch.float64, device=out.device)
    factors = torch.empty(blocks, dtype=torch.float64, device=out.device)
    applied, negated = flags(blocks, update), flags(blocks, update)
    if blocks:
        programs = int(np.ceil(blocks / DECIDED))
        launch(clip_and_negate, programs, totals, limit, factors, applied, negated, blocks, BLOCKS=DECIDED)
    place = offsets(update.layout, update.device)
    segments.launch(scale_segment, update.addresses, place, factors, applied, out, DTYPE=kind(update))
    return applied != 0, negated != 0, ~torch.isfinite(totals[1])
