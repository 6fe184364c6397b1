"""Rules that look for the direction in which the updates differ most."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.numerics.blocks import Float64
from hpcps.numerics.operations import weighted_sum, zero_result
from hpcps.numerics.updates import Combined, Updates
from hpcps.registry.config import MOST
from hpcps.rules.base import Granularity, Need, Tolerant
from hpcps.rules.context import NO_CONTEXT, Context
from hpcps.rules.selection import SELECTS
from hpcps.rules.weighted import Weighted, equal_weights

MOST_STEPS = 1_000
"""The largest number of steps of CAF; with `largest = "positive"` it takes a few, each of which makes a weight 0."""

CLOSE = 1e-10
"""The difference of equal scores of DnC, in units of the largest: it is one of rounding."""


class Caf(Weighted, Tolerant):
    """The weighted mean of least variance, while weights of updates far from it in the direction of most variance fall.

    Weights c start at 1. While their sum is above n - 2 f, take the weighted mean, the largest eigenvalue of the
    weighted covariance and its direction, and the squares t of the updates' differences to the mean in that direction;
    then multiply c by 1 - t / max t. The result is the mean with the smallest such eigenvalue, and the mean of all if
    f = 0. The eigenvector is computed exactly, without a random start. After Allouah, Guerraoui and Stephan, "Towards
    trustworthy federated learning with untrusted participants", ICML 2025.

    By default this is a variant: max t is the largest t of a positive weight. In the paper it is the largest of all,
    also of an update whose weight is already 0; then huge updates keep the other weights from falling. With 3 of 10
    updates 1,000 times as long as the others, the rule of the paper takes more than 20,000 steps, the variant 6.
    """

    unweighted: ClassVar[str] = "its own weights start at 1 for each update, and no other start is standard"

    kind: Literal["caf"] = "caf"
    largest: Literal["positive", "all"] = Field(
        "positive",
        description="The updates of which max t is taken: those with positive weights, or all as in the paper, with at "
        f"most {MOST_STEPS:,} steps.",
    )

    def fewest(self, f: int) -> int:
        return 2 * f + 1

    def weights(self, products: Float64, n: int) -> Float64:
        f, c = self.tolerated(n), np.ones(n)
        best, found = np.inf, np.full(n, 1 / n)
        if f == 0:
            return found
        for _ in range(MOST_STEPS):
            if not (total := c.sum()) > n - 2 * f:
                break
            share = c / total
            centred = _centred(products, share)
            root = np.sqrt(share)
            values, vectors = np.linalg.eigh(centred * root * root[:, None])
            if values[-1] < best:
                best, found = values[-1], share
            scores = (centred * (root * vectors[:, -1])).sum(axis=1) ** 2
            most = scores[c > 0].max() if self.largest == "positive" else scores.max()
            if not most > 0:
                break
            c *= 1 - np.minimum(scores / most, 1)
        return found


class Dnc(Tolerant):
    """Divide and conquer: the mean of the updates that no iteration drops.

    An iteration looks at some random coordinates: it drops the f updates with the largest squares of the difference to
    the mean in the direction of most variance; of equal squares, the last. After Shejwalkar and Houmansadr,
    "Manipulating the Byzantine: optimizing model poisoning attacks and defenses for federated learning", NDSS 2021.
    """

    granularity: ClassVar[Granularity] = "vector"
    needs: ClassVar[frozenset[Need]] = frozenset({"random"})
    unweighted: ClassVar[str] = SELECTS

    kind: Literal["dnc"] = "dnc"
    coordinates: int = Field(10_000, ge=1, le=100 * MOST, description="Number of coordinates in an iteration.")
    iterations: int = Field(5, ge=1, le=MOST, description="Number of iterations.")
    if_none: Literal["zero", "mean"] = Field(
        "zero", description="The result if every update is dropped: zero, or the mean of all updates."
    )

    def combine(self, updates: Updates, context: Context = NO_CONTEXT) -> Combined:
        n, layout, random = len(updates), updates.layout, context.random
        assert random is not None, "dnc needs random numbers"
        kept = np.ones(n, np.bool_)
        for _ in range(self.iterations):
            columns = np.sort(
                random.choice(layout.size, min(self.coordinates, layout.size), replace=False, shuffle=False)
            )
            rows = updates.columns(columns).astype(np.float64)
            rows -= rows.mean(axis=0)
            products = np.array([(rows * row).sum(axis=1) for row in rows])
            scores = (products * np.linalg.eigh(products)[1][:, -1]).sum(axis=1) ** 2
            levels = np.round(scores / (CLOSE * (scores.max() or 1.0)))
            kept[np.argsort(levels, kind="stable")[n - self.tolerated(n) :]] = False
        if not kept.any() and self.if_none == "zero":
            return zero_result(updates)
        return weighted_sum(updates, equal_weights(np.flatnonzero(kept) if kept.any() else np.arange(n), n))


def _centred(products: Float64, share: Float64) -> Float64:
    """Return the inner products of the rows' differences to their weighted mean: `[n, n]`."""
    inner = (products * share).sum(axis=1)
    centred: Float64 = products - inner - inner[:, None] + (share * inner).sum()
    return centred
