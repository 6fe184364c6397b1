"""The operations on updates with compiled kernels; `hpcps.numerics.operations` describes each."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from hpcps.numerics import definitions
from hpcps.numerics.blocks import Float64
from hpcps.numerics.kernels.filtering import mean_of_accepted, products
from hpcps.numerics.kernels.means import average_segments, vote_segments
from hpcps.numerics.kernels.ordered import Network, ordered_segments
from hpcps.numerics.kernels.pairs import gram, weighted_sum
from hpcps.numerics.kernels.places import FINITE, Places, finite, result
from hpcps.numerics.kernels.scores import scale_segments, screen_segments
from hpcps.numerics.layout import Mask, Vector
from hpcps.numerics.sorting import comparators, needed
from hpcps.numerics.updates import Updates

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
    return out, finite(updates, Places.of(updates).run(average_segments, threads, divisors, *to))


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
    places = Places.of(updates)
    worst = np.zeros((len(places.segments), len(updates)), np.int32)
    places.run(screen_segments, updates.to.threads, worst)
    refused = np.zeros(updates.sent.shape, np.bool_)
    number, row = np.nonzero(worst > FINITE)
    refused[row, places.segments[number, 0]] = True
    return refused


def scale(update: Updates, factors: Float64) -> Vector:
    out, to = result(update)
    Places.of(update).run(scale_segments, update.to.threads, factors, to[1])
    return out


def _ordered(updates: Updates, network: Network, ranks: tuple[int, int, bool], keep: int) -> tuple[Vector, bool]:
    """Call `ordered_segments`."""
    out, to = result(updates)
    found = Places.of(updates).run(ordered_segments, updates.to.threads, network, ranks, keep, *to)
    return out, finite(updates, found)


def _vote(updates: Updates, step: float, threshold: float) -> tuple[Vector, bool]:
    """Call `vote_segments`; a step of 0 asks for the mean."""
    out, to = result(updates)
    return out, finite(updates, Places.of(updates).run(vote_segments, updates.to.threads, step, threshold, *to))


@lru_cache(maxsize=256)
def _network(n: int, low: int, high: int) -> Network:
    """Return the network that sorts n rows as far as the ranks `low` to `high` (exclusive) need it."""
    width = next((width for width in (4, 8) if n <= width), 16)
    classes = 1 << max(n - 1, 0).bit_length() >> 4 or 1
    pairs = needed(comparators(width * classes, classes), range(low, high))
    return width, classes, np.array(pairs, np.int64).reshape(-1, 2)
