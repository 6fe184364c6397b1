"""The geometric median, from the inner products of the updates alone."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.numerics.blocks import Float64
from hpcps.numerics.layout import Vector
from hpcps.numerics.updates import Updates
from hpcps.registry.config import LARGEST_FACTOR, MOST
from hpcps.rules.context import Context
from hpcps.rules.coordinate_wise import median_of
from hpcps.rules.stage import prior_weights
from hpcps.rules.weighted import Weighted, distances

SMALLEST = 1e-100
"""The smallest nu: powers of its inverse are float64 numbers."""

ENOUGH = 0.1
"""The search for the minimum on a line ends where the slope is at most this share of the first one."""

RIDGE = 1e-6
"""What is added to the Hessian matrix, in units of the sum of weights: the matrix is singular if the updates are on a
line."""


class GeometricMedian(Weighted):
    """The vector with the smallest sum of distances to the updates, where distances below nu count as their squares.

    It is the mean of the updates, weighted by 1 / max(nu, distance to the result). A step of Weiszfeld takes this mean
    with the distances to the result so far. From a start on an update, or near one, such steps are short and many: the
    weight of that update is up to 1 / nu. Vardi and Zhang, "The multivariate L1-median and associated data depth", PNAS
    97(4), 2000, leave the nearest update out of such a step. Here a step is Newton's, along which the distance to the
    nearest update is not approximated, up to the minimum on this line, and then one of Weiszfeld. So a few steps
    suffice from every start.

    With `tolerance = 0` all steps are those of Weiszfeld, as in Pillutla, Kakade and Harchaoui, "Robust aggregation for
    federated learning", IEEE Transactions on Signal Processing 70, 2022, whose name for the rule is RFA. They take 3
    steps. These may end near the start, if that is near an update: after `zero`, near an update of zeros.

    With weights it is the vector with the smallest weighted sum of distances, and `mean` and `median` start from the
    weighted ones; after Dahan and Levy, "Weight for robustness: a comprehensive approach towards optimal fault-tolerant
    asynchronous ML", NeurIPS 2024, where an update counts by the iterations that its worker has taken.
    """

    weighted: ClassVar[bool] = True

    kind: Literal["geometric_median"] = "geometric_median"
    start: Literal["zero", "mean", "median", "lower_median"] = Field(
        "zero",
        description="The vector before the first step; a median is that of each coordinate. It matters with "
        "`tolerance = 0`, where steps from the mean are many if an update is huge, and if several vectors have the "
        "smallest sum.",
    )
    smoothing: float = Field(
        1e-6,
        ge=SMALLEST,
        le=LARGEST_FACTOR,
        description="nu, the smallest distance that counts; the result for updates that are nearer to each other is "
        "their mean.",
    )
    iterations: int = Field(100, ge=1, le=MOST, description="Largest number of steps.")
    tolerance: float = Field(
        1e-7,
        ge=0,
        lt=1,
        description="Stop where the mean of the unit vectors from the updates to the result is at most this long; the "
        "mean distance to the updates is then above its minimum by at most this share of the distance to the minimum. "
        "0: take exactly `iterations` steps, all of them Weiszfeld's.",
    )

    def row(self, updates: Updates, context: Context) -> Vector | None:
        if self.start in ("zero", "mean"):
            return None
        return median_of(updates, "lower" if self.start == "lower_median" else "mean")

    def weights(self, products: Float64, n: int, prior: Float64 | None = None) -> Float64:
        found, prior = np.zeros(len(products)), prior_weights(prior, n)
        if self.start == "mean":
            found[:] = prior / n
        elif self.start != "zero":
            found[n] = 1
        for _ in range(self.iterations if self.tolerance == 0 else 1):
            inverse = prior / np.maximum(distances(products, found)[:n], self.smoothing)
            found = np.zeros(len(products))
            found[:n] = inverse / inverse.sum()
        if self.tolerance > 0:
            found[:n] = self._nearest(products[:n, :n], found[:n], prior)
        return found

    def _nearest(self, products: Float64, shares: Float64, prior: Float64) -> Float64:
        """Return the weights of the updates in the result: `[n]`, positive, with the sum 1.

        Args:
            products: the inner products of the updates: `[n, n]`.
            shares: their weights in the vector after the first step.
            prior: how much each counts, `[n]`, with the sum n.
        """
        for _ in range(self.iterations):
            offsets = _offsets(products, shares)
            far = np.sqrt(np.maximum(np.diagonal(offsets), 0.0))
            inverse = prior / np.maximum(far, self.smoothing)
            inner = (offsets * inverse).sum(axis=1)
            if np.sqrt(max((inverse * inner).sum(), 0.0)) <= self.tolerance * len(shares):
                break
            curved = np.sqrt(prior) * np.where(far > self.smoothing, 1 / np.maximum(far, self.smoothing), 0.0) ** 1.5
            direction = _newton(offsets, inverse, inner, curved)
            along = (offsets * direction).sum(axis=1)
            square = (direction * along).sum()
            if not ((inverse * along).sum() < 0 and square > 0):  # only rounding is left
                break
            t = _lowest(far * far, along, square, self.smoothing, prior)
            moved = shares + t * (direction.sum() * shares - direction)
            far = np.sqrt(np.maximum(np.diagonal(_offsets(products, moved)), 0.0))
            inverse = prior / np.maximum(far, self.smoothing)
            shares = inverse / inverse.sum()
        return shares


def _offsets(products: Float64, shares: Float64) -> Float64:
    """Return the inner products of the differences of y to the rows, `[n, n]`, for y the sum of the rows times shares.

    The shares have the sum 1. The nearest row is the origin, so that the distance to it has a small relative error.
    """
    nearest = int(np.argmin(np.diagonal(products) - 2 * (products * shares).sum(axis=1)))
    own = products[nearest]
    moved = products - own - own[:, None] + own[nearest]
    inner = (moved * shares).sum(axis=1)
    found: Float64 = moved - inner - inner[:, None] + (shares * inner).sum()
    return found


def _newton(offsets: Float64, inverse: Float64, inner: Float64, curved: Float64) -> Float64:
    """Return Newton's step from y as factors of the differences of y to the rows: `[n]`.

    For v the differences and p the prior weights, the gradient is the sum of p v / |v|, and the Hessian matrix W I -
    sum of p v v' / |v|^3, without those below nu, with W the sum of p / |v|. Woodbury's identity solves it with inner
    products.

    Args:
        offsets: the inner products of the differences: `[n, n]`.
        inverse: p / |v|, at most p / nu: `[n]`.
        inner: the inner products of the differences with the gradient: `[n]`.
        curved: p^0.5 |v|^-1.5, and 0 below nu: `[n]`.
    """
    total = inverse.sum()
    matrix = -offsets * curved * curved[:, None]
    np.einsum("ii->i", matrix)[:] += (1 + RIDGE) * total
    found: Float64 = -(inverse + curved * _solution(matrix, curved * inner)) / total
    return found


def _solution(matrix: Float64, right: Float64) -> Float64:
    """Solve a system with a positive definite matrix by elimination; overwrite both arguments.

    The rounding of LAPACK depends on the processor; that of this function does not.
    """
    n = len(right)
    for k in range(n - 1):
        factors = matrix[k + 1 :, k] / matrix[k, k]
        matrix[k + 1 :, k + 1 :] -= factors[:, None] * matrix[k, k + 1 :]
        right[k + 1 :] -= factors * right[k]
    for k in reversed(range(n)):
        right[k] = (right[k] - (matrix[k, k + 1 :] * right[k + 1 :]).sum()) / matrix[k, k]
    return right


def _lowest(squares: Float64, along: Float64, square: float, smallest: float, prior: Float64) -> float:
    """Return about the t > 0 at which the smoothed sum of the distances |v + t p| is smallest.

    Args:
        squares: |v|^2 for the differences v: `[n]`.
        along: their inner products with the direction p, in which the sum falls: `[n]`.
        square: |p|^2.
        smallest: nu.
        prior: how much each distance counts: `[n]`.
    """

    def slope(t: float) -> float:
        far = np.sqrt(np.maximum(squares + t * (2 * along + square * t), 0.0))
        return float((prior * (along + square * t) / np.maximum(far, smallest)).sum())

    low, high, t = 0.0, np.inf, 1.0
    at_low, at_high = slope(0.0), np.inf
    enough, halves = ENOUGH * abs(at_low), False
    while high == np.inf or high - low > 1e-14 * high:
        found = slope(t)
        if abs(found) <= enough:
            break
        if found < 0:
            low, at_low = t, found
        else:
            high, at_high = t, found
        if high == np.inf:
            t *= 2
            continue
        halves = not halves
        secant = low + (high - low) * at_low / (at_low - at_high)
        middle = (low + high) / 2 if low > 0 else high / 16
        t = secant if not halves and low < secant < high else middle
    return t
