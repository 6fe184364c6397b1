"""The operations of the rules on the kernels: means, ordered means, screening and scaling."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from hpcps.numerics.blocks import Float64
from hpcps.numerics.kernels.means import average_segments
from hpcps.numerics.kernels.memory import FINITE
from hpcps.numerics.kernels.ordered import Network, ordered_segments
from hpcps.numerics.kernels.places import Places, address
from hpcps.numerics.kernels.scores import scale_segments, screen_segments
from hpcps.numerics.kernels.votes import vote_segments
from hpcps.numerics.layout import Mask, Vector
from hpcps.numerics.sorting import comparators, needed
from hpcps.numerics.updates import NotFiniteError, Updates

SMALLEST_SHARED_MEAN = 1 << 23
"""The minimum number of elements of all updates for which threads share a mean. It is larger than for other rules,
because a mean is limited by memory bandwidth: a second core does not read data from the caches faster."""


def average(updates: Updates, base: Vector | None, out: Vector | None, threads: int) -> tuple[Vector, bool]:
    """Compute the mean of the updates.

    Args:
        updates: the updates.
        base: the vector `[d]` to which the mean is added, if any.
        out: the array `[d]` for the result; by default a new one.
        threads: the maximum number of threads.

    Returns:
        The result `[d]`, and whether it is finite.

    Raises:
        NotFiniteError: updates that were not `checked` are not finite.
    """
    places = Places.of(updates)
    threads = threads if len(updates) * updates.layout.size >= SMALLEST_SHARED_MEAN else 1
    divisors = np.full(len(updates.layout.blocks), float(len(updates)))
    out, to = ends(updates, base, out)
    return out, finite(updates, places.run(average_segments, threads, divisors, *to))


def ordered(
    updates: Updates,
    low: int,
    high: int,
    base: Vector | None,
    out: Vector | None,
    threads: int,
    *,
    nearest: bool = False,
) -> tuple[Vector, bool]:
    """Compute, per coordinate, the mean of the sorted values of ranks `low` to `high` (exclusive).

    If `nearest`, compute the mean of the `high` values nearest to that mean instead, where high = n - low. For the
    other arguments see `average`.
    """
    places = Places.of(updates)
    network = _network(len(updates), 0 if nearest else low, len(updates) if nearest else high)
    out, to = ends(updates, base, out)
    return out, finite(updates, places.run(ordered_segments, threads, network, (low, high, nearest), 0, *to))


def around_median(
    updates: Updates, middle: tuple[int, int], keep: int, base: Vector | None, out: Vector | None, threads: int
) -> tuple[Vector, bool]:
    """Compute, per coordinate, the mean of the `keep` values nearest to the median.

    The median is the mean of the sorted values of ranks `middle[0]` to `middle[1]` (exclusive), one or two. For the
    other arguments see `average`.
    """
    n = len(updates)
    out, to = ends(updates, base, out)
    network = _network(n, 0, n)
    return out, finite(updates, Places.of(updates).run(ordered_segments, threads, network, (*middle, False), keep, *to))


def votes(
    updates: Updates, step: float, threshold: float, base: Vector | None, out: Vector | None, threads: int
) -> tuple[Vector, bool]:
    """Compute a step in the direction of most signs, or the mean, with its sign flipped where signs disagree.

    Args:
        updates: the updates.
        step: the size of the step; 0: compute the mean.
        threshold: the smallest absolute sum of the signs for which the sign of the mean stays.
        base: see `average`.
        out: see `average`.
        threads: see `average`.
    """
    out, to = ends(updates, base, out)
    return out, finite(updates, Places.of(updates).run(vote_segments, threads, step, threshold, *to))


def screen(updates: Updates, threads: int) -> Mask:
    """See `hpcps.rules.screening.screen`."""
    places = Places.of(updates)
    worst = np.zeros((len(places.segments), len(updates)), np.int32)
    places.run(screen_segments, threads, worst)
    refused = np.zeros(updates.sent.shape, np.bool_)
    number, row = np.nonzero(worst > FINITE)
    refused[row, places.segments[number, 0]] = True
    return refused


def scale(update: Updates, factors: Float64, out: Vector, threads: int = 1) -> None:
    """Multiply each block of a single update by its factor `[B]`, and write the result to `out` `[d]`."""
    Places.of(update).run(scale_segments, threads, factors, address(out))


@lru_cache(maxsize=256)
def _network(n: int, low: int, high: int) -> Network:
    """Return the network that sorts n rows as far as the ranks `low` to `high` (exclusive) need it."""
    width = next((width for width in (4, 8) if n <= width), 16)
    classes = 1 << max(n - 1, 0).bit_length() >> 4 or 1
    pairs = needed(comparators(width * classes, classes), range(low, high))
    return width, classes, np.array(pairs, np.int64).reshape(-1, 2)


def ends(updates: Updates, base: Vector | None, out: Vector | None) -> tuple[Vector, tuple[int, int]]:
    """Return the array for the result, and the addresses of the base (0: none) and of the result."""
    if out is None:
        out = np.empty(updates.layout.size, np.float32)
    for array in (out,) if base is None else (out, base):
        assert array.dtype == np.float32, "models are float32"
        assert array.shape == (updates.layout.size,), "models are flat"
        assert array.flags.c_contiguous, "models are contiguous"
    return out, (0 if base is None else address(base), address(out))


def finite(updates: Updates, results: list[tuple[int, int]]) -> bool:
    """Return whether the written values are finite.

    Raises:
        NotFiniteError: the updates are not finite.
    """
    if any(worst > FINITE for worst, _ in results):
        assert not updates.checked, "checked updates are finite"
        raise NotFiniteError
    return all(result <= FINITE for _, result in results)
