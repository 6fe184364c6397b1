"""What rules ask of the kernels."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from hpcps.blocks import Float64
from hpcps.kernels.means import FINITE, average_segments
from hpcps.kernels.ordered import ordered_segments
from hpcps.kernels.places import Integers, Places, address
from hpcps.kernels.scores import add_segments, multiply_segments, scale_segments, screen_segments
from hpcps.kernels.vectors import REGISTERS
from hpcps.layout import Mask, Vector
from hpcps.rules.sorting import comparators, needed
from hpcps.updates import NotFiniteError, Updates


def average(
    updates: Updates, base: Vector | None, out: Vector | None, threads: int, accepted: Mask | None = None
) -> tuple[Vector, bool]:
    """Take the mean of the updates, in each block of those that are accepted `[n, B]`; zero where none is.

    Args:
        updates: the updates.
        base: what the mean is added to `[d]`.
        out: where the result goes `[d]`.
        threads: how many share the work.
        accepted: which (update, block) pairs enter it `[n, B]`; by default all.

    Returns:
        The result `[d]`, and whether it is finite.

    Raises:
        NotFiniteError: the updates are not finite, which nobody knew.
    """
    places = Places.of(updates)
    if accepted is None:
        addresses, divisors = places.addresses, np.full(len(updates.layout.blocks), float(len(updates)))
    else:
        addresses, divisors = places.addresses * accepted, np.maximum(accepted.sum(axis=0), 1.0)
    out, base_at, out_at = _ends(updates, base, out)
    return out, _finite(
        updates,
        places.run(
            lambda a, b: average_segments(addresses, places.offsets, places.segments, a, b, divisors, base_at, out_at),
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


def products(updates: Updates, v: Vector, threads: int) -> tuple[Float64, Float64, Float64]:
    """Return <u, v> and |u|^2 of each block of each update u, and |v|^2; see `hpcps.rules.products`."""
    places = Places.of(updates)
    v = np.require(v, np.float32, ["C", "A"])
    sums = np.empty((len(places.segments), len(updates) + 1, 2))
    totals = np.zeros((len(updates.layout.blocks), len(updates) + 1, 2))
    places.run(
        lambda a, b: multiply_segments(places.addresses, places.offsets, places.segments, a, b, address(v), sums),
        threads,
    )
    add_segments(places.segments, sums, totals)
    return totals[:, :-1, 0].T, totals[:, :-1, 1].T, totals[:, -1, 1]


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
def _network(n: int, low: int, high: int) -> tuple[int, Integers]:
    """Return how many classes of n rows are sorted in registers, and what is then left to compare: `[p, 2]`."""
    classes = 1
    while -(-n // classes) > REGISTERS:
        classes *= 2
    pairs = needed(comparators(n, classes), range(low, high))
    return classes, np.array(pairs, np.int64).reshape(-1, 2)


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
