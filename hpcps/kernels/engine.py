"""What rules ask of the kernels."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from hpcps.blocks import Float64
from hpcps.kernels.means import FINITE, average_segments
from hpcps.kernels.networks import REGISTERS
from hpcps.kernels.ordered import Network, ordered_segments
from hpcps.kernels.places import Places, address
from hpcps.kernels.scores import scale_segments, screen_segments
from hpcps.kernels.vectors import WIDTH
from hpcps.layout import Mask, Vector
from hpcps.rules.sorting import comparators, needed
from hpcps.updates import NotFiniteError, Updates

LARGE = 1 << 25
"""Bytes of a result from which on it is written past all caches: they would not hold it until somebody reads it."""

SMALLEST_SHARED_MEAN = 1 << 23
"""Elements, over all updates, from which on threads share a mean. Other rules compute, a mean but reads: what another
core is to read of it comes from caches next to this one's no faster."""


def average(updates: Updates, base: Vector | None, out: Vector | None, threads: int) -> tuple[Vector, bool]:
    """Take the mean of the updates.

    Args:
        updates: the updates.
        base: what the mean is added to `[d]`.
        out: where the result goes `[d]`.
        threads: how many share the work.

    Returns:
        The result `[d]`, and whether it is finite.

    Raises:
        NotFiniteError: the updates are not finite, which nobody knew.
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
    """Take, of each coordinate, the mean of the sorted values of the ranks `low` to `high` (exclusive).

    Or, if `nearest`, that of the `high` values nearest to this mean, where high = n - low. For the rest, see `average`.
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
    """Multiply the only update by a factor for each block `[B]`, into `out` `[d]`."""
    places = Places.of(update)
    places.run(
        lambda a, b: scale_segments(places.addresses, places.offsets, places.segments, a, b, factors, address(out)),
        threads,
    )


@lru_cache(maxsize=256)
def _network(n: int, low: int, high: int) -> Network:
    """Plan how n rows are sorted, as far as the ranks `low` to `high` (exclusive) ask for it; see `ordered_segments`.

    All are Batcher's networks, as `comparators` gives them; up to 64 rows, their steps p = 2 and p = 1 are done by
    parts of 32 rows that have nothing to do with each other, and what those leave over.
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
    """Return where the result goes; and the addresses of the base (0: none) and of that, and if past all caches."""
    if out is None:
        out = np.empty(updates.layout.size, np.float32)
    for array in (out,) if base is None else (out, base):
        assert array.dtype == np.float32, "models are float32"
        assert array.shape == (updates.layout.size,), "and flat"
        assert array.flags.c_contiguous, "and whole, or a slice"
    base_at, out_at = 0 if base is None else address(base), address(out)
    return out, (base_at, out_at, base_at != out_at and out.nbytes >= LARGE)


def finite(updates: Updates, results: list[tuple[int, int]]) -> bool:
    """Tell whether what was written is finite.

    Raises:
        NotFiniteError: the updates are not.
    """
    if any(worst > FINITE for worst, _ in results):
        assert not updates.checked, "they were known to be finite"
        raise NotFiniteError
    return all(result <= FINITE for _, result in results)
