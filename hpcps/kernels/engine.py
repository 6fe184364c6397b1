"""What rules ask of the kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hpcps.blocks import Float64
from hpcps.kernels.means import FINITE, average_segments
from hpcps.kernels.networks import REGISTERS
from hpcps.kernels.ordered import Network, ordered_segments
from hpcps.kernels.places import Places, address
from hpcps.kernels.scores import add_segments, multiply_segments, scale_segments, screen_segments
from hpcps.kernels.vectors import WIDTH
from hpcps.layout import Mask, Vector
from hpcps.rules.products import Products
from hpcps.rules.sorting import comparators, needed
from hpcps.updates import NotFiniteError, Updates


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
    divisors = np.full(len(updates.layout.blocks), float(len(updates)))
    out, base_at, out_at = _ends(updates, base, out)
    return out, _finite(
        updates,
        places.run(
            lambda a, b: average_segments(
                places.addresses, places.offsets, places.segments, a, b, divisors, base_at, out_at
            ),
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
    out, base_at, out_at = _ends(updates, base, out)
    return out, _finite(
        updates,
        places.run(
            lambda a, b: ordered_segments(
                places.addresses, places.offsets, places.segments, a, b, network, low, high, nearest, base_at, out_at
            ),
            threads,
        ),
    )


def products(updates: Updates, v: Vector, threads: int) -> Products:
    """See `hpcps.rules.products`."""
    return _products(updates, Places.of(updates), v, threads, np.zeros(0), 0, 0)[0]


def mean_of_accepted(
    updates: Updates,
    v: Vector,
    decide: Callable[[Products], Mask],
    base: Vector | None,
    out: Vector | None,
    threads: int,
    *,
    zeros: bool,
) -> tuple[Vector, bool, Mask]:
    """Take the mean of the updates that a rule accepts for their products with v; for the rest, see `average`.

    Most rounds, all are accepted: their mean is made while their products are, and only the blocks of which one is not
    are gone through once more. That would not do where the base itself is written over.

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
    places = Places.of(updates)
    out, base_at, out_at = _ends(updates, base, out)
    expected = (places.addresses != 0) | zeros
    divisors = np.maximum(expected.sum(axis=0), 1.0)
    guess = base_at != out_at
    sums, results = _products(updates, places, v, threads, divisors, base_at, out_at if guess else 0)
    accepted = decide(sums)
    again = (accepted != expected).any(axis=0) if guess else np.ones(len(updates.layout.blocks), np.bool_)
    redo = again[places.segments[:, 0]]
    rest = Places(places.addresses * accepted, places.offsets, places.segments[redo])
    divisors = np.maximum(accepted.sum(axis=0), 1.0)
    finite = _finite(
        updates,
        rest.run(
            lambda a, b: average_segments(rest.addresses, rest.offsets, rest.segments, a, b, divisors, base_at, out_at),
            threads,
        ),
    )
    return out, finite and bool((results[~redo] <= FINITE).all()), accepted


def _products(
    updates: Updates, places: Places, v: Vector, threads: int, divisors: Float64, base_at: int, out_at: int
) -> tuple[Products, NDArray[np.int32]]:
    """Multiply; and take the mean, if there is an address for it. Return the largest bit patterns of that, too."""
    v = np.require(v, np.float32, ["C", "A"])
    v_at, n = address(v), len(updates)
    sums, results = np.empty((len(places.segments), n + 1, 2)), np.zeros(len(places.segments), np.int32)
    at = (v_at, sums, divisors, base_at, out_at, results)
    places.run(
        lambda a, b: multiply_segments(places.addresses, places.offsets, places.segments, a, b, *at),
        threads,
    )
    totals = np.zeros((len(updates.layout.blocks), n + 1, 2))
    add_segments(places.segments, sums, totals)
    return Products(totals[:, :-1, 0].T, totals[:, :-1, 1].T, totals[:, -1, 1]), results


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


def _ends(updates: Updates, base: Vector | None, out: Vector | None) -> tuple[Vector, int, int]:
    """Return where the result goes, and the addresses of the base (0: none) and of that."""
    if out is None:
        out = np.empty(updates.layout.size, np.float32)
    for array in (out,) if base is None else (out, base):
        assert array.dtype == np.float32, "models are float32"
        assert array.shape == (updates.layout.size,), "and flat"
        assert array.flags.c_contiguous, "and whole, or a slice"
    return out, 0 if base is None else address(base), address(out)


def _finite(updates: Updates, results: list[tuple[int, int]]) -> bool:
    """Tell whether what was written is finite.

    Raises:
        NotFiniteError: the updates are not.
    """
    if any(worst > FINITE for worst, _ in results):
        assert not updates.checked, "they were known to be finite"
        raise NotFiniteError
    return all(result <= FINITE for _, result in results)
