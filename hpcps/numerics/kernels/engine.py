"""The operations on updates with compiled kernels; `hpcps.numerics.operations` describes each."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics import definitions
from hpcps.numerics.blocks import SEGMENT, Accepts, Float64, Products
from hpcps.numerics.definitions import comparators, needed
from hpcps.numerics.kernels.means import average_segments, vote_segments
from hpcps.numerics.kernels.ordered import Network, ordered_segments
from hpcps.numerics.kernels.pairs import gram, weighted_sum
from hpcps.numerics.kernels.pointers import FINITE, Integers, PointerTable, address, finite, result
from hpcps.numerics.kernels.scores import add_segments, multiply_segments, scale_segments, screen_segments
from hpcps.numerics.layout import Mask, Vector
from hpcps.numerics.updates import Updates

SAMPLED = 64
"""The minimum number of segments of a block that is sampled, and the maximum distance between sampled segments."""
SAMPLES = 4
"""The number of parts of a sample; a prediction is used only if all parts agree."""
SMALLEST_SAMPLED = 1 << 24
"""The minimum number of elements of all updates for which sampling pays: fewer are in a cache when read again."""


def products(updates: Updates, v: Vector | None) -> Products:
    places = PointerTable.of(updates)
    sums, _ = _multiply(places, v, updates.to.threads, np.zeros_like(updates.used), None)
    return _products(places.segments, sums, len(updates.layout.blocks))


def mean_of_accepted(updates: Updates, v: Vector, accepts: Accepts, zeros: bool) -> tuple[Vector, bool, Mask]:
    # The accepted pairs are predicted, so that one pass computes the products and the mean. A second pass computes the
    # mean of the blocks for which the prediction was wrong or uncertain. If the result is written over the base, there
    # is no prediction, because the first pass would overwrite the base.
    places, blocks, threads = PointerTable.of(updates), len(updates.layout.blocks), updates.to.threads
    out, to = result(updates)
    apart = to[0] != to[1]
    likely, sure = (places.addresses != 0) | zeros, np.full(blocks, apart)
    if apart and len(updates) * updates.layout.size >= SMALLEST_SAMPLED:
        likely, sure = _predict(places, v, accepts, likely, threads)
    sums, results = _multiply(places, v, threads, likely, np.where(sure, _divisors(likely), 0.0), to)
    accepted = accepts(_products(places.segments, sums, blocks))
    again = ((accepted != likely).any(axis=0) | ~sure)[places.segments[:, 0]]
    rest = PointerTable(places.addresses * accepted, places.offsets, places.segments[again])
    found = rest.run(average_segments, threads, _divisors(accepted), *to)
    return out, finite(updates, found) and bool((results[~again] <= FINITE).all()), accepted


def _predict(places: PointerTable, v: Vector, accepts: Accepts, otherwise: Mask, threads: int) -> tuple[Mask, Mask]:
    """Predict the accepted pairs `[n, B]`, and return for which blocks the prediction is certain enough `[B]`.

    The prediction for a large block is the rule's decision on a sample of it; it is uncertain if the parts of the
    sample disagree on an update. The prediction for a small block is `otherwise`.
    """
    blocks = len(otherwise.T)
    block = places.segments[:, 0]
    counts = np.bincount(block, minlength=blocks)
    steps = np.where(counts >= SAMPLED, np.minimum(counts // SAMPLES, SAMPLED), 0)
    number = (places.segments[:, 1] - places.offsets[block]) // SEGMENT
    chosen = (steps[block] > 0) & (number % np.maximum(steps[block], 1) == 0)
    part = (number // np.maximum(steps[block], 1) % SAMPLES)[chosen]
    sample = PointerTable(places.addresses, places.offsets, places.segments[chosen])
    sums, _ = _multiply(sample, v, threads, np.zeros_like(otherwise), None)
    decisions = [accepts(_products(sample.segments[part == p], sums[part == p], blocks)) for p in range(SAMPLES)]
    agreed: Mask = np.all([decision == decisions[0] for decision in decisions], axis=(0, 1))
    return np.where(steps > 0, decisions[0], otherwise), agreed | (steps == 0)


def _multiply(
    places: PointerTable,
    v: Vector | None,
    threads: int,
    accepted: Mask,
    divisors: Float64 | None,
    to: tuple[int, int] = (0, 0),
) -> tuple[Float64, NDArray[np.int32]]:
    """Compute products and, with divisors, means; return `sums` and `results` of `multiply_segments`."""
    v = v if v is None else np.require(v, np.float32, ["C", "A"])
    divisors = np.zeros(accepted.shape[1]) if divisors is None else divisors
    sums = np.empty((len(places.segments), len(places.addresses) + 1, 2))
    results = np.zeros(len(places.segments), np.int32)
    given = np.ascontiguousarray(accepted), divisors, *to, results
    places.run(multiply_segments, threads, 0 if v is None else address(v), sums, *given)
    return sums, results


def _products(segments: Integers, sums: Float64, blocks: int) -> Products:
    totals = np.zeros((blocks, *sums.shape[1:]))
    add_segments(segments, sums, totals)
    return Products(totals[:, :-1, 0].T, totals[:, :-1, 1].T, totals[:, -1, 1])


def _divisors(accepted: Mask) -> Float64:
    """Return the divisor of each block's sum: `[B]`."""
    divisors: Float64 = np.maximum(accepted.sum(axis=0), 1.0)
    return divisors


__all__ = [
    "average",
    "gram",
    "mean_around_median",
    "mean_around_trimmed_mean",
    "mean_by_agreement",
    "mean_of_accepted",
    "mean_of_ranks",
    "products",
    "scale",
    "screen",
    "vote",
    "weighted_sum",
]

SMALLEST_SHARED_MEAN = 1 << 23
"""The minimum number of elements of all updates for which threads share a mean. It is larger than for other rules,
because a mean is limited by memory bandwidth: a second core does not read data from the caches faster."""


def average(updates: Updates) -> tuple[Vector, bool]:
    threads = updates.to.threads if len(updates) * updates.layout.size >= SMALLEST_SHARED_MEAN else 1
    divisors = np.full(len(updates.layout.blocks), float(len(updates)))
    out, to = result(updates)
    return out, finite(updates, PointerTable.of(updates).run(average_segments, threads, divisors, *to))


def mean_of_ranks(updates: Updates, low: int, high: int) -> tuple[Vector, bool]:
    return _ordered(updates, _network(len(updates), low, high), (low, high, False), 0)


def mean_around_trimmed_mean(updates: Updates, b: int) -> tuple[Vector, bool]:
    n = len(updates)
    return _ordered(updates, _network(n, 0, n), (b, n - b, True), 0)


def mean_around_median(updates: Updates, middle: tuple[int, int], keep: int) -> tuple[Vector, bool]:
    n = len(updates)
    return _ordered(updates, _network(n, 0, n), (*middle, False), keep)


def vote(updates: Updates, step: float) -> tuple[Vector, bool]:
    return _vote(updates, step, 0.0) if step else definitions.vote(updates, step)


def mean_by_agreement(updates: Updates, threshold: float) -> tuple[Vector, bool]:
    return _vote(updates, 0.0, threshold)


def screen(updates: Updates) -> Mask:
    places = PointerTable.of(updates)
    worst = np.zeros((len(places.segments), len(updates)), np.int32)
    places.run(screen_segments, updates.to.threads, worst)
    refused = np.zeros(updates.sent.shape, np.bool_)
    number, row = np.nonzero(worst > FINITE)
    refused[row, places.segments[number, 0]] = True
    return refused


def scale(update: Updates, factors: Float64) -> Vector:
    out, to = result(update)
    PointerTable.of(update).run(scale_segments, update.to.threads, factors, to[1])
    return out


def _ordered(updates: Updates, network: Network, ranks: tuple[int, int, bool], keep: int) -> tuple[Vector, bool]:
    """Call `ordered_segments`."""
    out, to = result(updates)
    found = PointerTable.of(updates).run(ordered_segments, updates.to.threads, network, ranks, keep, *to)
    return out, finite(updates, found)


def _vote(updates: Updates, step: float, threshold: float) -> tuple[Vector, bool]:
    """Call `vote_segments`; a step of 0 asks for the mean."""
    out, to = result(updates)
    return out, finite(updates, PointerTable.of(updates).run(vote_segments, updates.to.threads, step, threshold, *to))


@lru_cache(maxsize=256)
def _network(n: int, low: int, high: int) -> Network:
    """Return the network that sorts n rows as far as the ranks `low` to `high` (exclusive) need it."""
    width = next((width for width in (4, 8) if n <= width), 16)
    classes = 1 << max(n - 1, 0).bit_length() >> 4 or 1
    pairs = needed(comparators(width * classes, classes), range(low, high))
    return width, classes, np.array(pairs, np.int64).reshape(-1, 2)
