"""Triton kernels of the rules that combine each coordinate on its own.

Arguments that several kernels have:
    table: see `Segments`; `start` is a segment's first element, `count` the number of its elements.
    addresses: the address of each block of each update, 0 if it counts as zero: `[n, B]` int64.
    offsets: the first element of each block: `[B]` int64.
    base: the vector `[d]` float32 to which the result is added, or None.
    out: the array `[d]` float32 for the result.
    dirty: the output: 1 for blocks in which a value that is not finite was found, `[B]` int32.
    guard: only blocks with a value other than 0 are combined: `[B]` int32.
    overflow: the output: whether a segment's sum with the base is not finite: `[s]` int32.
    blocks: B.
    DTYPE: the type of the updates.
    VECTOR: if above 1, all addresses are multiples of 16 bytes, and counts are multiples of `VECTOR`.
    BLOCK: the maximum number of elements of a segment.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def load_row(
    address: tl.tensor,
    start: tl.tensor,
    count: tl.tensor,
    DTYPE: tl.constexpr,
    VECTOR: tl.constexpr,
    BLOCK: tl.constexpr,
) -> tl.tensor:
    """Load `count` elements from element `start` after an address, as float32; zeros if the address is 0."""
    here = tl.where(address != 0, count, 0)
    if VECTOR > 1:
        here = tl.multiple_of(here, VECTOR)
    lanes = tl.arange(0, BLOCK)
    places = address.to(tl.pointer_type(DTYPE)) + start + lanes
    if VECTOR > 1:
        places = tl.max_contiguous(tl.multiple_of(places, 16), BLOCK)
    return tl.load(places, mask=lanes < here, other=0.0).to(tl.float32)


@triton.jit
def write(
    values: tl.tensor,
    number: tl.tensor,
    start: tl.tensor,
    count: tl.tensor,
    base: tl.tensor,
    out: tl.tensor,
    overflow: tl.tensor,
    VECTOR: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Round float64 values to float32, add them to the base, and write them."""
    result = values.to(tl.float32)
    lanes = tl.arange(0, BLOCK)
    target = out + start + lanes
    if VECTOR > 1:
        count = tl.multiple_of(count, VECTOR)
        target = tl.max_contiguous(tl.multiple_of(target, 16), BLOCK)
    if base is not None:
        source = base + start + lanes
        if VECTOR > 1:
            source = tl.max_contiguous(tl.multiple_of(source, 16), BLOCK)
        result += tl.load(source, mask=lanes < count, other=0.0)
        tl.store(overflow + number, tl.max((result - result != 0.0).to(tl.int32), axis=0))
    tl.store(target, result, mask=lanes < count)


@triton.jit
def average_segment(
    table: tl.tensor,
    addresses: tl.tensor,
    offsets: tl.tensor,
    divisors: tl.tensor,
    base: tl.tensor,
    out: tl.tensor,
    dirty: tl.tensor,
    guard: tl.tensor,
    overflow: tl.tensor,
    n: tl.tensor,
    blocks: tl.tensor,
    STEP: tl.constexpr,
    DTYPE: tl.constexpr,
    VECTOR: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Sum the n updates in their order, and divide by the divisor of each block: `[B]` float64.

    `STEP` rows are loaded at a time, so that several loads are in flight.
    """
    number = tl.load(table + 4 * tl.program_id(0))
    block = tl.load(table + 4 * tl.program_id(0) + 1)
    start = tl.load(table + 4 * tl.program_id(0) + 2)
    count = tl.load(table + 4 * tl.program_id(0) + 3)
    if tl.load(guard + block) == 0:
        return
    within = start - tl.load(offsets + block)
    total = tl.zeros([BLOCK], tl.float64)
    for first in range(0, n, STEP):
        for row in tl.static_range(STEP):
            place = addresses + (first + row) * blocks + block
            address = tl.load(place, mask=first + row < n, other=0)
            total += load_row(address, within, count, DTYPE, VECTOR, BLOCK).to(tl.float64)
    # A sum of finite float32 values cannot overflow float64: it is finite if and only if all of them are.
    if tl.max((total - total != 0.0).to(tl.int32), axis=0) != 0:
        tl.store(dirty + block, 1)
    write(total / tl.load(divisors + block), number, start, count, base, out, overflow, VECTOR, BLOCK)


@triton.jit
def ordered_segment(
    table: tl.tensor,
    addresses: tl.tensor,
    offsets: tl.tensor,
    base: tl.tensor,
    out: tl.tensor,
    dirty: tl.tensor,
    guard: tl.tensor,
    overflow: tl.tensor,
    blocks: tl.tensor,
    N: tl.constexpr,
    NETWORK: tl.constexpr,
    LOW: tl.constexpr,
    HIGH: tl.constexpr,
    NEAREST: tl.constexpr,
    DTYPE: tl.constexpr,
    VECTOR: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Compute the mean of the sorted values of ranks `LOW` to `HIGH` (exclusive) of N updates, in registers.

    If `NEAREST`, compute the mean of the `HIGH` values nearest to that mean instead, where HIGH = N - LOW; see
    `hpcps.rules.phocas`. `NETWORK` lists the rows of each comparator, one after another: (low, high, low, high, …).
    """
    number = tl.load(table + 4 * tl.program_id(0))
    block = tl.load(table + 4 * tl.program_id(0) + 1)
    start = tl.load(table + 4 * tl.program_id(0) + 2)
    count = tl.load(table + 4 * tl.program_id(0) + 3)
    if tl.load(guard + block) == 0:
        return
    within = start - tl.load(offsets + block)
    found = tl.zeros([BLOCK], tl.float32)
    rows = ()
    for row in tl.static_range(N):
        value = load_row(tl.load(addresses + row * blocks + block), within, count, DTYPE, VECTOR, BLOCK)
        found += value - value
        rows = rows + (value,)  # type: ignore[assignment]
    if tl.max((found != 0.0).to(tl.int32), axis=0) != 0:  # the difference is NaN if a value is not finite
        tl.store(dirty + block, 1)
    # The comparators are constants; Triton allows no name for a constant that changes within a loop.
    for pair in tl.static_range(len(NETWORK) // 2):
        first = rows[NETWORK[2 * pair]]  # type: ignore[var-annotated]
        second = rows[NETWORK[2 * pair + 1]]  # type: ignore[var-annotated]
        rows = (
            rows[: NETWORK[2 * pair]]
            + (tl.minimum(first, second),)
            + rows[NETWORK[2 * pair] + 1 : NETWORK[2 * pair + 1]]
            + (tl.maximum(first, second),)
            + rows[NETWORK[2 * pair + 1] + 1 :]
        )
    total = tl.zeros([BLOCK], tl.float64)
    for rank in tl.static_range(LOW, HIGH):
        total += rows[rank].to(tl.float64)
    mean = total / (HIGH - LOW)
    if NEAREST:
        for rank in tl.static_range(LOW):
            low = rows[rank].to(tl.float64)  # type: ignore[var-annotated]
            high = rows[HIGH + rank].to(tl.float64)
            total += tl.where(mean - low > high - mean, high, low)
        write(total / HIGH, number, start, count, base, out, overflow, VECTOR, BLOCK)
    else:
        write(mean, number, start, count, base, out, overflow, VECTOR, BLOCK)


@triton.jit
def screen_segment(
    table: tl.tensor,
    addresses: tl.tensor,
    offsets: tl.tensor,
    kept: tl.tensor,
    guard: tl.tensor,
    n: tl.tensor,
    blocks: tl.tensor,
    DTYPE: tl.constexpr,
    VECTOR: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """Write 0 in `kept` `[n, B]` int64, a copy of the addresses, for each block that is not finite.

    Several programs may write the same 0, so their order does not matter.
    """
    block = tl.load(table + 4 * tl.program_id(0) + 1)
    start = tl.load(table + 4 * tl.program_id(0) + 2)
    count = tl.load(table + 4 * tl.program_id(0) + 3)
    if tl.load(guard + block) == 0:
        return
    within = start - tl.load(offsets + block)
    for row in range(0, n):
        value = load_row(tl.load(addresses + row * blocks + block), within, count, DTYPE, VECTOR, BLOCK)
        if tl.max((value - value != 0.0).to(tl.int32), axis=0) != 0:
            tl.store(kept + row * blocks + block, 0)
