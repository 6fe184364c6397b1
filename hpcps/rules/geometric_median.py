"""The geometric median."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from hpcps.numerics.blocks import Float64
from hpcps.numerics.layout import Vector
from hpcps.numerics.updates import Updates
from hpcps.registry.config import LARGEST_FACTOR, MOST
from hpcps.rules.context import Context
from hpcps.rules.median import median_of
from hpcps.rules.weighted import Weighted


class GeometricMedian(Weighted):
    """The vector with the smallest sum of distances to the updates, smoothed, by Weiszfeld's steps.

    Each step takes the mean of the updates, weighted by 1 / max(nu, distance to the result so far). After Pillutla,
    Kakade and Harchaoui, "Robust aggregation for federated learning", IEEE Transactions on Signal Processing 70, 2022,
    whose name for the rule is RFA. They take 3 steps; more cost nothing, because they need only the Gram matrix.
    """

    kind: Literal["geometric_median"] = "geometric_median"
    start: Literal["zero", "mean", "median", "lower_median"] = Field(
        "zero",
        description="The vector before the first step; a median is that of each coordinate. From the mean, a huge "
        "update takes many more steps.",
    )
    smoothing: float = Field(1e-6, gt=0, le=LARGEST_FACTOR, description="nu, the smallest distance that counts.")
    iterations: int = Field(100, ge=1, le=MOST, description="Largest number of steps.")
    tolerance: float = Field(
        1e-6,
        ge=0,
        lt=1,
        description="Stop after a step that lowers the sum of distances by less than this share; 0: do all steps.",
    )

    def row(self, updates: Updates, context: Context) -> Vector | None:
        """See `Weighted.row`: the vector before the first step, if no weights of the updates give it."""
        if self.start in ("zero", "mean"):
            return None
        return median_of(updates, "lower" if self.start == "lower_median" else "mean")

    def weights(self, products: Float64, n: int) -> Float64:
        """See `Weighted.weights`; with a further row, its weight is 1 before the first step and 0 after it."""
        found = np.zeros(len(products))
        if self.start == "mean":
            found[:] = 1 / n
        elif self.start != "zero":
            found[n] = 1
        before = np.inf
        for _ in range(self.iterations):
            distances = _distances(products, found)[:n]
            total = distances.sum()
            if self.tolerance and before - total <= self.tolerance * before < np.inf:
                break
            before = total
            inverse = 1 / np.maximum(distances, self.smoothing)
            found = np.zeros(len(products))
            found[:n] = inverse / inverse.sum()
        return found


def _distances(products: Float64, weights: Float64) -> Float64:
    """Return the distance of each row to the sum of the rows times their weights: `[n]`."""
    inner = (products * weights).sum(axis=1)
    squared = np.diagonal(products) - 2 * inner + (weights * inner).sum()
    distances: Float64 = np.sqrt(np.maximum(squared, 0.0))
    return distances
