"""Attacks that shift the mean of the honest updates: by a fixed factor, by the best one, as far as a bound allows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from math import ceil
from statistics import NormalDist
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.attacks.base import Need
from hpcps.attacks.omniscient import AdversaryContext, Moments, Omniscient, centred_products, power_of_two, strips
from hpcps.numerics.blocks import Float64, rounded
from hpcps.numerics.layout import Mask, Vector
from hpcps.numerics.operations import squared_distances
from hpcps.registry.config import LARGEST_FACTOR
from hpcps.registry.failures import described

Side = Literal["-", "+"]
SIGNS: dict[Side, float] = {"-": -1.0, "+": 1.0}


class Ipm(Omniscient):
    """Inner product manipulation: every Byzantine worker sends -epsilon * m, m the mean of the honest updates.

    Xie, Koyejo and Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation", UAI 2019,
    section 4: a small epsilon passes rules that compare distances, and a large one reverses the mean.
    """

    kind: Literal["ipm"] = "ipm"
    epsilon: float = Field(
        0.1,
        gt=0,
        le=LARGEST_FACTOR,
        description="Factor on the negated mean; 0.1 and 0.5 are common, and 100 for krum.",
    )

    def craft(self, honest: Vector, own: Vector, context: AdversaryContext) -> Vector:
        return rounded(-self.epsilon * honest.mean(axis=0, dtype=np.float64))


class Alie(Omniscient):
    """A little is enough: the mean of the honest updates minus z times their standard deviation, per coordinate.

    The standard deviation is that of a sample, and 0 if there is one honest update. With z = "auto", for n updates of
    which f are Byzantine, s = n // 2 + 1 - f honest updates and the Byzantine ones are a majority, and z is the normal
    quantile of (n - f - s) / (n - f), which is kept 1 / (2 (n - f)) away from 0 and 1. If f is small, z is 0 or
    negative: the attack then sends the mean, or an update on the other side of it. After Baruch, Baruch and Goldberg,
    "A little is enough: circumventing defenses for distributed learning", NeurIPS 2019. ByzFL adds 1.5 standard
    deviations and Garfield 1.035.
    """

    kind: Literal["alie"] = "alie"
    z: Literal["auto"] | Annotated[float, Field(ge=0, le=LARGEST_FACTOR)] = Field(
        1.5, description="Number of standard deviations; `auto`: from the numbers of honest and Byzantine updates."
    )
    sign: Side = Field("-", description="`-`: below the mean; `+`: above it.")

    def deviations(self, context: AdversaryContext) -> float:
        """Return z, the number of standard deviations."""
        return quantile(context.n, context.f) if self.z == "auto" else self.z

    def craft(self, honest: Vector, own: Vector, context: AdversaryContext) -> Vector:
        found = Moments.of(honest)
        return rounded(found.mean + SIGNS[self.sign] * self.deviations(context) * found.deviation)


def quantile(n: int, f: int) -> float:
    """Return z of `auto` for n updates, of which f are Byzantine."""
    honest = n - f
    supporters = n // 2 + 1 - f
    share = (honest - supporters) / honest
    edge = 1 / (2 * honest)
    return NormalDist().inv_cdf(min(max(share, edge), 1 - edge))


class Sparse(Alie):
    """Hybrid sparse attack: a large shift of the mean in sensitive coordinates, and a small one in all others.

    With m the mean of the honest updates and s their standard deviation, the Byzantine workers send m - scale s in the
    sensitive coordinates, and m - z s in the others, as `alie` does. Sensitive are the coordinates in which |m| is
    largest in the first round. The authors find them by pruning the network before training, for which an adversary
    here would need its weights. After Özfatura, Özfatura, Küpçü, Büyükateş, Coşkuner and Gündüz, "Aggressive,
    imperceptible, or both: architecture-aware hybrid Byzantines in federated learning", arXiv 2404.06230.
    """

    kind: Literal["sparse"] = "sparse"  # type: ignore[assignment]
    z: Literal["auto"] | Annotated[float, Field(ge=0, le=LARGEST_FACTOR)] = Field(
        "auto", description="Number of standard deviations in the other coordinates; `auto`: as in `alie`."
    )
    scale: float = Field(
        1.5, gt=0, le=LARGEST_FACTOR, description="Number of standard deviations in the sensitive coordinates."
    )
    share: float = Field(0.005, gt=0, le=1, description="Share of the sensitive coordinates, rounded up.")

    def craft(self, honest: Vector, own: Vector, context: AdversaryContext) -> Vector:
        found = Moments.of(honest)
        if "sensitive" not in context.state:
            number = ceil(self.share * found.mean.size)
            sensitive = np.zeros(found.mean.size, np.bool_)
            sensitive[np.argsort(-np.abs(found.mean), kind="stable")[:number]] = True
            context.state["sensitive"] = sensitive
        sensitive = context.state["sensitive"].astype(np.bool_)
        factors = np.where(sensitive, self.scale, self.deviations(context))
        return rounded(found.mean + SIGNS[self.sign] * factors * found.deviation)


def rows_of(honest: Vector, context: AdversaryContext) -> tuple[Vector, Mask]:
    """Return rows for the updates of all participants `[n, d]`, in worker order, and which are Byzantine `[n]`.

    The rows of Byzantine participants are to be filled.
    """
    order = np.argsort((*context.workers, *context.byzantine))  # a rule may prefer the first of equal updates
    byzantine: Mask = order >= len(honest)
    rows = np.empty((len(order), honest.shape[1]), np.float32)
    rows[~byzantine] = honest
    return rows, byzantine


class Searched(Omniscient, ABC):
    """An attack with the factor for which the result of the run's rule is farthest from the mean of the honest updates.

    The search is not exhaustive. It evaluates the rule with all updates of the round for a start factor, adds a step
    that doubles while the distance grows, and then moves towards the best factor by steps that shrink.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"honest", "rule"})

    start: float = Field(0.0, ge=0, le=LARGEST_FACTOR, description="The first factor.")
    step: float = Field(
        10.0, gt=0, le=LARGEST_FACTOR, description="The first step; it doubles while a factor is better."
    )
    shrink: float = Field(0.8, gt=0.5, lt=1, description="Factor on the step after each evaluation that follows.")
    evaluations: int = Field(20, ge=1, le=10_000, description="Number of evaluations of the rule in a round.")

    @abstractmethod
    def direction(self, found: Moments) -> tuple[Float64 | float, Float64]:
        """Return the vectors a and b of the updates a + factor * b, `[d]`; a may be 0."""

    def craft(self, honest: Vector, own: Vector, context: AdversaryContext) -> Vector:
        rule = context.rule
        assert rule is not None, f"{self.kind} needs the rule"
        found = Moments.of(honest)
        base, along = self.direction(found)
        rows, byzantine = rows_of(honest, context)

        def distance(factor: float) -> float:
            rows[byzantine] = rounded(base + factor * along)
            result = np.asarray(rule(rows))
            if result.shape != found.mean.shape:
                raise ValueError(f"rule must return one update of {found.mean.size} elements, not {described(result)}")
            return _distance(result, found.mean)

        return rounded(base + self._farthest(distance) * along)

    def _farthest(self, distance: Callable[[float], float]) -> float:
        """Return the factor from 0 with the largest distance among those that the search evaluates."""
        best = tried = self.start
        largest, step, growing = distance(best), self.step, True
        for _ in range(self.evaluations - 1):
            if growing:
                tried = best + step
            elif tried < best:
                tried += step
            else:
                before, tried = tried, tried - step
                while tried < 0:
                    tried = (tried + before) / 2
            found = distance(tried)
            better = found > largest
            growing = growing and better
            if better:
                best, largest = tried, found
            step *= 2 if growing else self.shrink
        return best


class SearchedIpm(Searched):
    """Inner product manipulation with the strongest factor: -factor times the mean of the honest updates.

    The strongest factor moves the result of the run's rule farthest from the mean of the honest updates, of the
    `evaluations` factors that are tried in each round. The search follows Allouah, Farhadkhani, Guerraoui, Gupta, Pinot
    and Stephan, "Fixing by mixing: a recipe for optimal Byzantine ML under heterogeneity", AISTATS 2023, in the library
    ByzFL; the attack is `ipm`.
    """

    kind: Literal["searched_ipm"] = "searched_ipm"

    def direction(self, found: Moments) -> tuple[Float64 | float, Float64]:
        return 0.0, -found.mean


class SearchedAlie(Searched):
    """A little is enough with the strongest factor: the mean of the honest updates minus factor * standard deviation.

    The strongest factor moves the result of the run's rule farthest from the mean of the honest updates, of the
    `evaluations` factors that are tried in each round. The search follows Allouah, Farhadkhani, Guerraoui, Gupta, Pinot
    and Stephan, "Fixing by mixing: a recipe for optimal Byzantine ML under heterogeneity", AISTATS 2023, in the library
    ByzFL, which adds the deviation; the attack is `alie`.
    """

    kind: Literal["searched_alie"] = "searched_alie"
    sign: Side = Field("-", description="`-`: below the mean; `+`: above it.")

    def direction(self, found: Moments) -> tuple[Float64 | float, Float64]:
        return found.mean, SIGNS[self.sign] * found.deviation


def _distance(result: Vector, mean: Float64) -> float:
    """Return the squared distance of the result to the mean; squares of float32 do not overflow in float64."""
    total = 0.0
    for columns in strips(1, len(mean)):
        difference = result[columns] - mean[columns]
        total += float(np.square(difference).sum())
    return total


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
        # The sum of |m + gamma p - h_i|^2 is V + h gamma^2 |p|^2, and that of |h_i - h_j|^2 is V + h |m - h_i|^2, where
        # V is the sum of all |m - h_i|^2.
        squares, own = np.zeros(len(honest)), 0.0
        for columns in strips(*honest.shape):
            squares += np.square((honest[:, columns] - mean[columns]) / unit).sum(axis=1)
            own += float(np.square(along[columns], dtype=np.float64).sum())
        bound = squares.max() if self.bound == "largest" else squares.min()
        return float(np.sqrt(bound / own))
