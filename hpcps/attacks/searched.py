"""Attacks that try the run's rule to find their strength."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.attacks.alie import SIGNS, Side
from hpcps.attacks.base import Need
from hpcps.attacks.context import AdversaryContext
from hpcps.attacks.moments import Moments, strips
from hpcps.attacks.omniscient import Omniscient
from hpcps.numerics.blocks import Float64
from hpcps.numerics.layout import Vector
from hpcps.numerics.mixture import rounded
from hpcps.registry.config import LARGEST_FACTOR
from hpcps.registry.failures import described


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
        order = np.argsort((*context.workers, *context.byzantine))  # a rule may prefer the first of equal updates
        byzantine = order >= len(honest)
        rows = np.empty((len(order), honest.shape[1]), np.float32)
        rows[~byzantine] = honest

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
