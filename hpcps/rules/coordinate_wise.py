"""Rules per coordinate: means of all values, of the middle ones, of those around a middle; votes on the sign."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field, model_validator

from hpcps.numerics.layout import Vector
from hpcps.numerics.operations import (
    average,
    mean_around_median,
    mean_around_trimmed_mean,
    mean_by_agreement,
    mean_of_middle,
    mean_of_nearest,
    mean_of_ranks,
    vote,
    weighted_median,
    zero_result,
)
from hpcps.numerics.updates import Combined, Destination, Updates
from hpcps.registry.config import LARGEST_FACTOR, MOST_ROLES
from hpcps.rules.base import Granularity, Rule, Tolerant
from hpcps.rules.context import DEFAULT, NO_CONTEXT, Context, Tolerance, count


class CoordinateWise(Rule, ABC):
    """A rule that combines the values of each coordinate."""

    granularity: ClassVar[Granularity] = "coordinate"
    checks: ClassVar[bool] = True


VOTES = "each update has one vote, and no weighted form of the vote is standard"


class Average(CoordinateWise):
    """The mean of the n updates; another name for `mean`, and the name in records.

    With weights it is the weighted mean.
    """

    weighted: ClassVar[bool] = True

    kind: Literal["average"] = "average"

    def combine(self, updates: Updates, context: Context = NO_CONTEXT) -> Combined:
        return average(updates)


class Mean(Average):
    """The mean of the n updates; runs with `average` are the same runs."""

    kind: Literal["mean"] = "mean"  # type: ignore[assignment]

    def same_results(self) -> Average:
        return Average(before=self.before, skipped=self.skipped)


Middle = Literal["mean", "lower"]
MIDDLE = "The median of an even number of values: the mean of the two middle ones, or the lower one."


def ranks_of_median(n: int, middle: Middle) -> tuple[int, int]:
    """Return the first rank whose value enters the median of n values, and the rank after the last."""
    first = (n - 1) // 2
    return first, first + 1 if middle == "lower" else n // 2 + 1


def median_of(updates: Updates, middle: Middle = "mean") -> Vector:
    """Return the median of the updates per coordinate, in an array of its own: `[d]`."""
    apart = updates.onto(Destination(out=updates.empty(updates.layout.size), threads=updates.to.threads))
    if updates.weights is not None:
        return weighted_median(apart, lower=middle == "lower").update
    return mean_of_ranks(apart, *ranks_of_median(len(updates), middle)).update


class Median(CoordinateWise):
    """Per coordinate, the median of the n updates.

    With weights it is the value at which the cumulative weight of the sorted values passes one half of their sum; where
    it meets one half, the mean of that value and the next one.

    After Yin, Chen, Ramchandran and Bartlett, "Byzantine-robust distributed learning: towards optimal statistical
    rates", ICML 2018.
    """

    weighted: ClassVar[bool] = True

    kind: Literal["median"] = "median"
    middle: Middle = Field("mean", description=MIDDLE)

    def combine(self, updates: Updates, context: Context = NO_CONTEXT) -> Combined:
        if updates.weights is not None:
            return weighted_median(updates, lower=self.middle == "lower")
        return mean_of_ranks(updates, *ranks_of_median(len(updates), self.middle))


EXCLUSIVE = "f and trim exclude each other: leave one of them out"


class Trimming(CoordinateWise, ABC):
    """A rule that drops values per coordinate: b at each end, or the b outermost; `trim` or `f` says how many."""

    bound: ClassVar[tuple[int, int]] = (2, 1)
    weighted: ClassVar[bool] = True

    trim: float
    f: Tolerance | None = Field(
        None,
        description="Number of Byzantine updates among those of a combiner that the rule tolerates, a whole number; or "
        "their share, below 0.5, which is rounded down. It replaces `trim`: b = f.",
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Trimming:
        if self.f is not None and self.trim != DEFAULT:
            raise ValueError(EXCLUSIVE)
        return self

    @abstractmethod
    def trimmed(self, n: int) -> int:
        """Return b for n updates that are enough."""

    def fewest(self, f: int) -> int:
        return 0 if self.f is None else 2 * f + 1  # with `trim` there is no smallest number: see `trims_all`

    def trims_all(self, n: int) -> bool:
        """Tell whether n updates are too few with `trim`, 2 or fewer: the result is zero by definition, as in ZenoPS.

        `hpcps check` warns of it; what `fewest` does not allow is an error.
        """
        return self.f is None and n <= 2

    def tolerated(self, n: int) -> int:
        return 0 if self.trims_all(n) else self.trimmed(n)


class TrimmedMean(Trimming):
    """Per coordinate, the mean of the n updates without the b smallest and the b largest values.

    b = f if f is given; too few updates are n <= 2 f. Otherwise b = int(min((n - 2) // 2, trim * n)), and too few are
    n <= 2. The result of too few is zero, and no update is accepted. n counts updates that came, not absent workers.
    Where trim * n < 1, such as for 3 or 4 updates and a trim of 0.2, b is 0 and the rule is the mean.

    With weights it is the weighted mean without the smallest and the largest values that have the share b / n of the
    sum of weights, at each end; a value that is dropped in part counts with the rest of its weight. After Yin, Chen,
    Ramchandran and Bartlett, "Byzantine-robust distributed learning: towards optimal statistical rates", ICML 2018.
    """

    kind: Literal["trimmed_mean"] = "trimmed_mean"
    trim: float = Field(
        DEFAULT, ge=0, lt=0.5, description="Share of the updates dropped at each end, 0 to 0.5; 0.2 in ZenoPS."
    )

    def trimmed(self, n: int) -> int:
        """Return b, the number of updates dropped at each end, for enough updates."""
        return min((n - 2) // 2, count(self.trim, n)) if self.f is None else count(self.f, n)

    def combine(self, updates: Updates, context: Context = NO_CONTEXT) -> Combined:
        n = len(updates)
        if self.trims_all(n):
            return zero_result(updates)
        b = self.trimmed(n)
        if updates.weights is not None:
            return mean_of_middle(updates, b / n)
        return mean_of_ranks(updates, b, n - b)


class Phocas(Trimming):
    """Per coordinate, the mean of the n - b values nearest to the b-trimmed mean.

    b = f if f is given; too few updates are n <= 2 f. Otherwise b = int(max(1, trim * n)), and too few are n <= 2. The
    result of too few is zero, and no update is accepted. Of two values at the same distance from the trimmed mean, the
    smaller is kept. With weights it is the weighted mean of the nearest values that have the share (n - b) / n of the
    sum of weights; a value that is kept in part counts with that part of its weight. After Xie, Koyejo and Gupta,
    "Phocas: dimensional Byzantine-resilient stochastic gradient descent", arXiv 1805.09682.
    """

    kind: Literal["phocas"] = "phocas"
    trim: float = Field(
        DEFAULT,
        ge=0,
        lt=0.5,
        description="Share of the updates dropped, 0 to 0.5; at least one is dropped; 0.2 in ZenoPS.",
    )

    def trimmed(self, n: int) -> int:
        """Return b, the number of updates dropped, for enough updates."""
        return max(1, count(self.trim, n)) if self.f is None else count(self.f, n)

    def combine(self, updates: Updates, context: Context = NO_CONTEXT) -> Combined:
        n = len(updates)
        if self.trims_all(n):
            return zero_result(updates)
        if updates.weights is not None:
            return mean_of_nearest(updates, self.trimmed(n) / n, "trimmed")
        return mean_around_trimmed_mean(updates, self.trimmed(n))


class Meamed(CoordinateWise, Tolerant):
    """Per coordinate, the mean of the n - f values nearest to the median.

    Of two values at the same distance from the median, the smaller is kept. With weights it is the weighted mean of the
    values nearest to the weighted median that have the share (n - f) / n of the sum of weights; a value that is kept in
    part counts with that part of its weight. After Xie, Koyejo and Gupta, "Generalized Byzantine-tolerant SGD", arXiv
    1802.10116.
    """

    weighted: ClassVar[bool] = True

    kind: Literal["meamed"] = "meamed"
    middle: Middle = Field("mean", description=MIDDLE)

    def fewest(self, f: int) -> int:
        return 2 * f + 1

    def combine(self, updates: Updates, context: Context = NO_CONTEXT) -> Combined:
        n = len(updates)
        if updates.weights is not None:
            return mean_of_nearest(updates, self.tolerated(n) / n, self.middle)
        return mean_around_median(updates, ranks_of_median(n, self.middle), n - self.tolerated(n))


class SignMajority(CoordinateWise):
    """Per coordinate, a step in the direction of the majority of the updates' signs; zero if they are even.

    After Bernstein, Zhao, Azizzadenesheli and Anandkumar, "signSGD with majority vote is communication efficient and
    fault tolerant", ICLR 2019.
    """

    unweighted: ClassVar[str] = VOTES

    kind: Literal["sign_majority"] = "sign_majority"
    step: float = Field(1e-3, gt=0, le=LARGEST_FACTOR, description="The size of the step in each coordinate.")

    def combine(self, updates: Updates, context: Context = NO_CONTEXT) -> Combined:
        return vote(updates, float(np.float32(self.step)))


class Rlr(CoordinateWise):
    """Robust learning rate: the mean, with its sign flipped in coordinates where too few updates agree on the sign.

    The sign is flipped where the absolute value of the sum of the updates' signs is below the threshold. After Ozdayi,
    Kantarcioglu and Gel, "Defending against backdoors in federated learning with robust learning rate", AAAI 2021.
    """

    unweighted: ClassVar[str] = VOTES

    kind: Literal["rlr"] = "rlr"
    threshold: int = Field(4, ge=0, le=MOST_ROLES, description="The smallest absolute sum of signs that is trusted.")

    def combine(self, updates: Updates, context: Context = NO_CONTEXT) -> Combined:
        return mean_by_agreement(updates, float(self.threshold))
