"""Triton kernels for the products of updates with a vector, and for the decisions of Zeno and Zeno++ on them.

The module `coordinates` describes the arguments that are not described here. Products of two float32 are exact in
float64, and every sum has a fixed order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hpcps.numerics.device.coordinates import load_row, write


@triton.jit
def multiply_segment(
    table: tl.tensor,
    addresses: tl.tensor,
    offsets: tl.tensor,
    v: tl.tensor,
    sums: tl.tensor,
    divisors: tl.tensor,
    chosen: tl.tensor,
    base: tl.tensor,
    out: tl.tensor,
    overflow: tl.tensor,
    n: tl.tensor,
    blocks: tl.tensor,
    segments: tl.tensor,
    STEP: tl.constexpr,
    DTYPE: tl.constexpr,
    VECTOR: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Compute the products of the updates with v `[d]` float32, and the mean of the chosen updates in the same pass.

    Args:
        sums: the output: <u, v> and |u|^2 of each update and, last, of u = v, of each segment: `[n + 1, 2, s]`.
        divisors: the divisor of each block's mean `[B]`, or None if no mean is wanted.
        chosen: the addresses of the updates in the mean: those of the others are 0, `[n, B]`.
        segments: s.
    """
    number = tl.load(table + 4 * tl.program_id(0))
    block = tl.load(table + 4 * tl.program_id(0) + 1)
    start = tl.load(table + 4 * tl.program_id(0) + 2)
    count = tl.load(table + 4 * tl.program_id(0) + 3)
    within = start - tl.load(offsets + block)
    lanes = tl.arange(0, BLOCK)
    source = v + start + lanes
    if VECTOR > 1:
        count = tl.multiple_of(count, VECTOR)
        source = tl.max_contiguous(tl.multiple_of(source, 16), BLOCK)
    own = tl.load(source, mask=lanes < count, other=0.0).to(tl.float64)
    total = tl.zeros([BLOCK], tl.float64)
    for first in range(0, n, STEP):
        for step in tl.static_range(STEP):
            row = first + step
            address = tl.load(addresses + row * blocks + block, mask=row < n, other=0)
            value = load_row(address, within, count, DTYPE, VECTOR, BLOCK).to(tl.float64)
            tl.store(sums + (2 * row) * segments + number, tl.sum(value * own, axis=0), mask=row < n)
            tl.store(sums + (2 * row + 1) * segments + number, tl.sum(value * value, axis=0), mask=row < n)
            if divisors is not None:
                counts = tl.load(chosen + row * blocks + block, mask=row < n, other=0) != 0
                total += tl.where(counts, value, 0.0)
    square = tl.sum(own * own, axis=0)
    tl.store(sums + (2 * n) * segments + number, square)
    tl.store(sums + (2 * n + 1) * segments + number, square)
    if divisors is not None:
        write(total / tl.load(divisors + block), number, start, count, base, out, overflow, VECTOR, BLOCK)


@triton.jit
def add_segments(
    spans: tl.tensor, sums: tl.tensor, totals: tl.tensor, blocks: tl.tensor, segments: tl.tensor, CHUNK: tl.constexpr
) -> None:
    """Add the sums of each block's segments: `[2 (n + 1), s]` to `[2 (n + 1), B]`; one program per total."""
    block = tl.program_id(0)
    row = tl.program_id(1)
    last = tl.load(spans + block + 1)
    lanes = tl.arange(0, CHUNK)
    total = tl.zeros([CHUNK], tl.float64)
    for first in range(tl.load(spans + block), last, CHUNK):
        total += tl.load(sums + row * segments + first + lanes, mask=first + lanes < last, other=0.0)
    tl.store(totals + row * blocks + block, tl.sum(total, axis=0))


@triton.jit
def accept_similar(
    which: tl.tensor,
    totals: tl.tensor,
    addresses: tl.tensor,
    thresholds: tl.tensor,
    accepted: tl.tensor,
    chosen: tl.tensor,
    divisors: tl.tensor,
    changed: tl.tensor,
    n: tl.tensor,
    blocks: tl.tensor,
    ROWS: tl.constexpr,
) -> None:
    """Decide as `hpcps.rules.zeno` which updates of a block are accepted; one program for each block in `which`.

    Blocks that are not finite count as zero.

    Args:
        thresholds: rho and 1 + epsilon, float64.
        accepted: the decisions before, which are replaced: `[n, B]` int32.
        chosen: the addresses of the accepted updates before, which are replaced: `[n, B]`.
        divisors: the output: the number of accepted updates, at least 1: `[B]` float64.
        changed: the output: whether `chosen` or `accepted` has changed: `[B]` int32.
        ROWS: a power of two, at least n.
    """
    block = tl.load(which + tl.program_id(0))
    rows = tl.arange(0, ROWS)
    there = rows < n
    inner = tl.load(totals + (2 * rows) * blocks + block, mask=there, other=0.0)
    squares = tl.load(totals + (2 * rows + 1) * blocks + block, mask=there, other=0.0)
    own = tl.load(totals + (2 * n) * blocks + block)
    finite = squares - squares == 0.0
    inner = tl.where(finite, inner, 0.0)
    squares = tl.where(finite, squares, 0.0)
    resembles = inner > tl.load(thresholds) * own
    # No square is below -1: so nothing is accepted if v is not finite.
    short = squares < tl.where(own - own == 0.0, tl.load(thresholds + 1) * own, -1.0)
    good = (resembles & short & there).to(tl.int32)
    place = tl.load(addresses + rows * blocks + block, mask=there, other=0)
    place = tl.where((good != 0) & finite, place, 0)
    other = tl.load(accepted + rows * blocks + block, mask=there, other=0) != good
    moved = tl.load(chosen + rows * blocks + block, mask=there, other=0) != place
    tl.store(accepted + rows * blocks + block, good, mask=there)
    tl.store(chosen + rows * blocks + block, place, mask=there)
    tl.store(divisors + block, tl.maximum(tl.sum(good, axis=0), 1).to(tl.float64))
    tl.store(changed + block, tl.max((other | moved).to(tl.int32), axis=0))


@triton.jit
def clip_and_negate(
    totals: tl.tensor,
    threshold: tl.tensor,
    factors: tl.tensor,
    applied: tl.tensor,
    negated: tl.tensor,
    blocks: tl.tensor,
    BLOCKS: tl.constexpr,
) -> None:
    """Decide as `hpcps.rules.zeno_plus_plus` on the blocks of one update; `BLOCKS` blocks per program.

    Args:
        totals: <u, v>, |u|^2 and twice |v|^2: `[4, B]`; a block that was not sent is zero.
        threshold: float64, `[1]`.
        factors: the output: the factor of each block, float64, `[B]`; 0 if it is not applied.
        applied: the output: int32, `[B]`.
        negated: the output: int32, `[B]`.
    """
    block = tl.program_id(0) * BLOCKS + tl.arange(0, BLOCKS)
    there = block < blocks
    inner = tl.load(totals + block, mask=there, other=0.0)
    theirs = tl.load(totals + blocks + block, mask=there, other=0.0)
    own = tl.load(totals + 2 * blocks + block, mask=there, other=0.0)
    good = (theirs > 0.0) & (own > 0.0) & (theirs - theirs == 0.0) & (own - own == 0.0)
    theirs = tl.sqrt(tl.where(good, theirs, 1.0))
    own = tl.sqrt(tl.where(good, own, 1.0))
    cosine = tl.where(good, inner, 0.0) / (own * theirs)
    opposed = good & (cosine < tl.load(threshold))
    ratio = own / theirs
    factor = tl.where(ratio < 1.0, ratio, 1.0) * tl.where(opposed, cosine, 1.0)
    tl.store(factors + block, tl.where(good, factor, 0.0), mask=there)
    tl.store(applied + block, good.to(tl.int32), mask=there)
    tl.store(negated + block, opposed.to(tl.int32), mask=there)


@triton.jit
def scale_segment(
    table: tl.tensor,
    addresses: tl.tensor,
    offsets: tl.tensor,
    factors: tl.tensor,
    applied: tl.tensor,
    out: tl.tensor,
    DTYPE: tl.constexpr,
    VECTOR: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Multiply the applied blocks of one update by their factors; the others are zero. `out` may be the update."""
    block = tl.load(table + 4 * tl.program_id(0) + 1)
    start = tl.load(table + 4 * tl.program_id(0) + 2)
    count = tl.load(table + 4 * tl.program_id(0) + 3)
    address = tl.where(tl.load(applied + block) != 0, tl.load(addresses + block), 0)
    value = load_row(address, start - tl.load(offsets + block), count, DTYPE, VECTOR, BLOCK)
    number = tl.full([], 0, tl.int64)
    write(value.to(tl.float64) * tl.load(factors + block), number, start, count, None, out, None, VECTOR, BLOCK)
