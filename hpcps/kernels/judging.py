"""What rules ask of the kernels that hold updates against one of their own."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hpcps.blocks import SEGMENT, Float64
from hpcps.kernels.engine import ends, finite
from hpcps.kernels.means import FINITE, average_segments
from hpcps.kernels.places import Integers, Places, address
from hpcps.kernels.scores import add_segments, multiply_segments
from hpcps.layout import Mask, Vector
from hpcps.rules.products import Products
from hpcps.updates import Updates

Decide = Callable[[Products], Mask]

SAMPLED = 64
"""Segments of a block from which on a sample of it is looked at first; and of so many segments, one."""
SAMPLES = 4
"""Parts of a sample that have to agree, each by itself, or what it says is not relied on."""
SMALLEST_SAMPLED = 1 << 24
"""Elements, over all updates, from which on that pays: less comes from a cache when it is read again."""


def products(updates: Updates, v: Vector, threads: int) -> Products:
    """See `hpcps.rules.products`."""
    places = Places.of(updates)
    sums, _ = _multiply(places, v, threads, np.zeros((len(updates.layout.blocks), len(updates) + 1)))
    return _products(places.segments, sums, len(updates.layout.blocks))


def mean_of_accepted(
    updates: Updates,
    v: Vector,
    decide: Decide,
    base: Vector | None,
    out: Vector | None,
    threads: int,
    *,
    zeros: bool,
) -> tuple[Vector, bool, Mask]:
    """Take the mean of the updates that a rule accepts for their products with v; for the rest, see `engine.average`.

    Which those are can be foreseen, mostly: their mean is made while their products are, and only the blocks where that
    was wrong, or nobody could tell, are gone through once more. That would not do where the base itself is written
    over.

    Args:
        updates: the updates.
        v: what they are held against `[d]`.
        decide: tells which (update, block) pairs are accepted `[n, B]`.
        base: what the mean is added to `[d]`.
        out: where the result goes `[d]`.
        threads: how many share the work.
        zeros: whether a block that was left out is likely to be accepted.

    Returns:
        The result `[d]`, whether it is finite, and what was accepted.
    """
    places, blocks = Places.of(updates), len(updates.layout.blocks)
    out, to = ends(updates, base, out)
    apart = to[0] != to[1]
    likely, sure = (places.addresses != 0) | zeros, np.full(blocks, apart)
    if apart and len(updates) * updates.layout.size >= SMALLEST_SAMPLED:
        likely, sure = _foresee(places, v, decide, likely, threads)
    weights = np.column_stack((likely.T, np.where(sure, _divisors(likely), 0.0)))
    sums, results = _multiply(places, v, threads, weights, to)
    accepted = decide(_products(places.segments, sums, blocks))
    again = ((accepted != likely).any(axis=0) | ~sure)[places.segments[:, 0]]
    rest = Places(places.addresses * accepted, places.offsets, places.segments[again])
    at = (_divisors(accepted), *to)
    found = rest.run(lambda a, b: average_segments(rest.addresses, rest.offsets, rest.segments, a, b, *at), threads)
    return out, finite(updates, found) and bool((results[~again] <= FINITE).all()), accepted


def _foresee(places: Places, v: Vector, decide: Decide, otherwise: Mask, threads: int) -> tuple[Mask, Mask]:
    """Tell what is likely to be accepted `[n, B]`, and of which blocks that can be said `[B]`.

    A sample of each large block is judged as if it were all of it. Where its parts do not agree on every update, the
    whole may go either way. Of a small block `otherwise` is said.
    """
    blocks = len(otherwise.T)
    block = places.segments[:, 0]
    counts = np.bincount(block, minlength=blocks)
    steps = np.where(counts >= SAMPLED, np.minimum(counts // SAMPLES, SAMPLED), 0)
    number = (places.segments[:, 1] - places.offsets[block]) // SEGMENT
    chosen = (steps[block] > 0) & (number % np.maximum(steps[block], 1) == 0)
    part = (number // np.maximum(steps[block], 1) % SAMPLES)[chosen]
    sample = Places(places.addresses, places.offsets, places.segments[chosen])
    sums, _ = _multiply(sample, v, threads, np.zeros((blocks, len(otherwise) + 1)))
    said = [decide(_products(sample.segments[part == p], sums[part == p], blocks)) for p in range(SAMPLES)]
    agreed: Mask = np.all([words == said[0] for words in said], axis=(0, 1))
    return np.where(steps > 0, said[0], otherwise), agreed | (steps == 0)


def _multiply(
    places: Places, v: Vector, threads: int, weights: Float64, to: tuple[int, int, bool] = (0, 0, False)
) -> tuple[Float64, NDArray[np.int32]]:
    """Multiply, and take means; return `sums` and `results` of `multiply_segments`."""
    v = np.require(v, np.float32, ["C", "A"])
    v_at, weights = address(v), np.ascontiguousarray(weights, np.float64)
    sums = np.empty((len(places.segments), len(places.addresses) + 1, 2))
    results = np.zeros(len(places.segments), np.int32)
    at = (v_at, sums, weights, *to, results)
    places.run(lambda a, b: multiply_segments(places.addresses, places.offsets, places.segments, a, b, *at), threads)
    return sums, results


def _products(segments: Integers, sums: Float64, blocks: int) -> Products:
    totals = np.zeros((blocks, *sums.shape[1:]))
    add_segments(segments, sums, totals)
    return Products(totals[:, :-1, 0].T, totals[:, :-1, 1].T, totals[:, -1, 1])


def _divisors(accepted: Mask) -> Float64:
    """Return what the sum of each block is divided by: `[B]`."""
    divisors: Float64 = np.maximum(accepted.sum(axis=0), 1.0)
    return divisors
