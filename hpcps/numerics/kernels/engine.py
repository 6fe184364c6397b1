"""The operations of the rules on the kernels: means, ordered means, screening and scaling."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from hpcps.numerics.blocks import Float64
from hpcps.numerics.kernels.means import FINITE, average_segments
from hpcps.numerics.kernels.networks import REGISTERS
from hpcps.numerics.kernels.ordered import Network, ordered_segments
from hpcps.numerics.kernels.places import Places, address
from hpcps.numerics.kernels.scores import scale_segments, screen_segments
from hpcps.numerics.kernels.vectors import WIDTH
from hpcps.numerics.layout import Mask, Vector
from hpcps.numerics.sorting import comparators, needed
from hpcps.numerics.updates import NotFiniteError, Updates

LARGE = 1 << 25
"""The minimum size of a result, in bytes, that is written with non-temporal stores: caches would not hold it."""

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
    return out, finite(
        updates,
        places.run(
            lambda a, b: average_segments(places.addresses, places.offsets, places.segments, a, b, divisors, *to),
            threads,
        ),
    )


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
    return out, finite(
        updates,
        places.run(
            lambda a, b: ordered_segments(
                places.addresses, places.offsets, places.segments, a, b, network, low, high, nearest, *to
            ),
            threads,
        ),
    )


def screen(updates: Updates, threads: int) -> Mask:
    """See `hpcps.rules.screening.screen`."""
    places = Places.of(updates)
    worst = np.zeros((len(places.segments), len(updates)), np.int64)
    places.run(lambda a, b: screen_segments(places.addresses, places.offsets, places.segments, a, b, worst), threads)
    refused = np.zeros(updates.sent.shape, np.bool_)
    number, row = np.nonzero(worst > FINITE)
    refused[row, places.segments[number, 0]] = True
    return refused


def scale(update: Updates, factors: Float64, out: Vector, threads: int = 1) -> None:
    """Multiply each block of a single update by its factor `[B]`, and write the result to `out` `[d]`."""
    places = Places.of(update)
    places.run(
        lambda a, b: scale_segments(places.addresses, places.offsets, places.segments, a, b, factors, address(out)),
        threads,
    )


@lru_cache(maxsize=256)
def _network(n: int, low: int, high: int) -> Network:
    """Return the network that sorts n rows as far as the ranks `low` to `high` (exclusive) need it.

    It is Batcher's network, as `comparators` returns it, in the form that `ordered_segments` takes. For 17 to 64 rows,
    steps p = 2 and p = 1 consist of independent merges of 32 rows and of the remaining comparators.
    """
    classes = 1
    while -(-n // classes) > REGISTERS:
        classes *= 2
    height, merges, pairs = n, [], needed(comparators(n, classes), range(low, high))
    if classes in (2, 4):
        height = classes * REGISTERS
        merges = {2: [(0, 2, 1)], 4: [(0, 4, 2), (1, 4, 2), (0, 4, 1), (2, 4, 1)]}[classes]
        rest = [(row, row + 1) for row in range(1, n - 1, 2)] if classes == 4 else []
        pairs = needed(tuple(rest), range(low, high))
    merged, compared = (np.array(rows, np.int64).reshape(-1, k) for rows, k in ((merges, 3), (pairs, 2)))
    return height, classes, WIDTH * merged, WIDTH * compared


def ends(updates: Updates, base: Vector | None, out: Vector | None) -> tuple[Vector, tuple[int, int, bool]]:
    """Return the array for the result, and (address of the base or 0, address of the result, non-temporal or not)."""
    if out is None:
        out = np.empty(updates.layout.size, np.float32)
    for array in (out,) if base is None else (out, base):
        assert array.dtype == np.float32, "models are float32"
        assert array.shape == (updates.layout.size,), "models are flat"
        assert array.flags.c_contiguous, "models are contiguous"
    base_at, out_at = 0 if base is None else address(base), address(out)
    return out, (base_at, out_at, base_at != out_at and out.nbytes >= LARGE)


def finite(updates: Updates, results: list[tuple[int, int]]) -> bool:
    """Return whether the written values are finite.

    Raises:
        NotFiniteError: the updates are not finite.
    """
    if any(worst > FINITE for worst, _ in results):
        assert not updates.checked, "checked updates are finite"
        raise NotFiniteError
    return all(result <= FINITE for _, result in results)
