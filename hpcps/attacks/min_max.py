"""Min-max and min-sum: updates as far from the mean as honest updates are from each other."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import numpy as np
from pydantic import Field

from hpcps.attacks.context import AdversaryContext
from hpcps.attacks.moments import Moments, centred_products, power_of_two, strips
from hpcps.attacks.omniscient import Omniscient
from hpcps.numerics.blocks import Float64
from hpcps.numerics.gram import squared_distances
from hpcps.numerics.layout import Vector
from hpcps.numerics.mixture import rounded


class BoundedAttack(Omniscient, ABC):
    """The mean of the honest updates, moved along a direction p as far as a bound on distances allows."""

    direction: Literal["unit", "std", "sign"] = Field(
        "unit",
        description="p: `unit`: minus the mean of the honest updates, divided by its norm; `std`: minus their standard "
        "deviation, per coordinate; `sign`: minus the sign of their mean.",
    )

    @abstractmethod
    def factor(self, honest: Vector, mean: Float64, unit: float, along: Vector) -> float:
        """Return the largest factor of p within the bound, divided by `unit`.

        Args:
            honest: the honest updates `[h, d]`.
            mean: their mean `[d]`.
            unit: a power of 2 near the largest difference of an honest update to the mean.
            along: p `[d]`, scaled so that its largest element is 1 or -1.
        """

    def craft(self, honest: Vector, own: Vector, context: AdversaryContext) -> Vector:
        """See `Omniscient.craft`; the mean if p is zero."""
        found = Moments.of(honest)
        p = -found.deviation if self.direction == "std" else -found.mean
        if self.direction == "sign":
            p = np.sign(p)
        size = np.abs(p).max(initial=0.0)
        if not size > 0:
            return rounded(found.mean)
        # The length of p does not matter: its factor is in proportion. Both units keep float32 far from its limits.
        along = (p / size).astype(np.float32)
        unit = power_of_two(float(found.deviation.max()) * np.sqrt(len(honest)))
        factor = self.factor(honest, found.mean, unit, along)
        return rounded(found.mean + factor * unit * along.astype(np.float64))


class MinMax(BoundedAttack):
    """Min-max: m + gamma p, no farther from any honest update than two honest updates are from each other.

    m is the mean of the honest updates h_i, and gamma the largest factor for which max |m + gamma p - h_i| is at most
    max |h_i - h_j|, in closed form: the least positive root of |m + gamma p - h_i|^2 = max |h_i - h_j|^2. After
    Shejwalkar and Houmansadr, "Manipulating the Byzantine: optimizing model poisoning attacks and defenses for
    federated learning", NDSS 2021, who search for gamma by halving steps; Blades returns the last factor of its search.
    """

    kind: Literal["min_max"] = "min_max"

    def factor(self, honest: Vector, mean: Float64, unit: float, along: Vector) -> float:
        products = centred_products(honest, mean, unit, along)
        squares, inner, own = np.diagonal(products)[:-1], products[-1, :-1], products[-1, -1]
        room = np.maximum(squared_distances(products[:-1, :-1]).max() - squares, 0.0)
        root = np.sqrt(inner * inner + own * room)
        # own g^2 - 2 inner g - room = 0; each form of its positive root has no cancellation for its sign of inner.
        with np.errstate(divide="ignore", invalid="ignore"):
            factors = np.where(inner >= 0, (inner + root) / own, room / (root - inner))
        return float(factors.min())


class MinSum(BoundedAttack):
    """Min-sum: m + gamma p, with no larger sum of squared distances to the honest updates than one of these has.

    m is the mean of the honest updates h_i, and gamma the largest factor for which the sum of |m + gamma p - h_i|^2 is
    at most the bound: the largest of the sums of |h_i - h_j|^2 over j. In closed form, gamma |p| is the largest of
    |m - h_i|. After Shejwalkar and Houmansadr, "Manipulating the Byzantine: optimizing model poisoning attacks and
    defenses for federated learning", NDSS 2021. Some libraries (FL-Byzantine-Library, Plato) take the smallest sum.
    """

    kind: Literal["min_sum"] = "min_sum"
    bound: Literal["largest", "smallest"] = Field(
        "largest", description="Which honest update's sum is the bound: `largest` as in the paper, or `smallest`."
    )

    def factor(self, honest: Vector, mean: Float64, unit: float, along: Vector) -> float:
        """See `BoundedAttack.factor`.

        The sum of |m + gamma p - h_i|^2 is V + h gamma^2 |p|^2, and that of |h_i - h_j|^2 is V + h |m - h_i|^2, where V
        is the sum of all |m - h_i|^2.
        """
        squares, own = np.zeros(len(honest)), 0.0
        for columns in strips(*honest.shape):
            squares += np.square((honest[:, columns] - mean[columns]) / unit).sum(axis=1)
            own += float(np.square(along[columns], dtype=np.float64).sum())
        bound = squares.max() if self.bound == "largest" else squares.min()
        return float(np.sqrt(bound / own))
