"""Sorts the values of each coordinate by a sorting network that compares whole rows."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from hpcps.numerics.layout import Vector


@lru_cache(maxsize=256)
def comparators(n: int, below: int | None = None) -> tuple[tuple[int, int], ...]:
    """Return the comparators (low, high) of a network that sorts n rows.

    Batcher's merge exchange sort, which takes any n (Knuth, The Art of Computer Programming, volume 3,
    algorithm 5.2.2M). Its steps p = …, 4, 2, 1 leave the rows p apart sorted.

    Args:
        n: the number of rows.
        below: a power of two; steps p >= `below` are left out, because rows `below` apart are sorted already.
    """
    pairs = []
    top = 1 << max(n - 1, 0).bit_length() >> 1
    p = top if below is None else min(top, below >> 1)
    while p:
        q, r, distance = top, 0, p
        while distance:
            pairs += [(i, i + distance) for i in range(n - distance) if i & p == r]
            distance, q, r = q - p, q >> 1, p
        p >>= 1
    return tuple(pairs)


def needed(pairs: tuple[tuple[int, int], ...], ranks: range) -> tuple[tuple[int, int], ...]:
    """Return the comparators that affect the values at these ranks."""
    wanted, kept = set(ranks), []
    for low, high in reversed(pairs):
        if low in wanted or high in wanted:
            wanted |= {low, high}
            kept.append((low, high))
    return tuple(reversed(kept))


def ascending(values: Vector) -> list[Vector]:
    """Return the rows of `[n, t]` with every column sorted, smallest first; the argument is not changed.

    This is much faster than `np.sort(axis=0)`, which gathers and sorts one column at a time. Values are finite; the
    signs of zeros may change.
    """
    rows = list(values.copy())
    spare = np.empty(values.shape[1], dtype=values.dtype)
    for low, high in comparators(len(rows)):
        smaller, larger = rows[low], rows[high]
        np.minimum(smaller, larger, out=spare)
        np.maximum(smaller, larger, out=larger)
        rows[low], spare = spare, smaller
    return rows
