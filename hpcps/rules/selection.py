"""Rules that average a selection of the updates: those near to each other, near to a vector, or the best subset."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from itertools import chain, combinations
from math import comb
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hpcps.numerics.blocks import Float64
from hpcps.numerics.layout import Vector
from hpcps.numerics.operations import finite_products, mean_around_median, squared_distances, whole_gram
from hpcps.numerics.updates import Combined, Updates
from hpcps.registry.config import MOST_ROLES
from hpcps.rules.base import Granularity, Need, Tolerant
from hpcps.rules.context import NO_CONTEXT, Context
from hpcps.rules.coordinate_wise import median_of, ranks_of_median
from hpcps.rules.weighted import Compares, Weighted, equal_weights

Indices = NDArray[np.intp]
SELECTS = "it selects a number of updates, and no weighted form of that is standard"

Neighbours = Literal["n-f-2", "n-f-1"]


class LowestScores(Weighted, Tolerant, ABC):
    """The mean of the updates with the smallest scores; of equal ones, the first."""

    unweighted: ClassVar[str] = SELECTS

    def kept(self, n: int) -> int:
        """Return the number of updates that enter the mean."""
        return n - self.tolerated(n)

    def scores(self, products: Float64, n: int) -> Float64:
        """Return the score of each update, `[n]`; by default its squared distance to `row`."""
        found: Float64 = squared_distances(products)[n, :n]
        return found

    def selected(self, products: Float64, n: int) -> Indices:
        """Return the updates with the smallest scores, `kept` of them."""
        return np.argsort(self.scores(products, n), kind="stable")[: self.kept(n)]

    def weights(self, products: Float64, n: int) -> Float64:
        return equal_weights(self.selected(products, n), len(products))


def krum_scores(distances: Float64, neighbours: int) -> Float64:
    """Return the sum of the squared distances of each row to its nearest others: `[n]`.

    Args:
        distances: the squared distances of all pairs: `[n, n]`.
        neighbours: the number of other rows that count, 1 to n - 1.
    """
    others = distances + np.diag(np.full(len(distances), np.inf))
    nearest = np.sort(others, axis=1)[:, :neighbours]
    total = np.zeros(len(distances))
    for column in nearest.T:  # equal rows get equal scores, because the order of the sum is that of the distances
        total += column
    return total


class Krum(LowestScores):
    """The update with the smallest sum of squared distances to its nearest neighbours.

    Of updates with equal scores, the first is taken. After Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine
    learning with adversaries: Byzantine tolerant gradient descent", NeurIPS 2017, where n - f - 2 neighbours count and
    n >= 2 f + 3.
    """

    bound: ClassVar[tuple[int, int]] = (2, 3)

    kind: Literal["krum"] = "krum"
    neighbours: Neighbours = Field(
        "n-f-2", description="Number of neighbours that count: n - f - 2 in the paper, n - f - 1 in some libraries."
    )

    def kept(self, n: int) -> int:
        return 1

    def fewest(self, f: int) -> int:
        return f + self._others + 1

    @property
    def _others(self) -> int:
        """The number of the n - f updates that are not neighbours of an update: itself, and one more in the paper."""
        return 2 if self.neighbours == "n-f-2" else 1

    def scores(self, products: Float64, n: int) -> Float64:
        return krum_scores(squared_distances(products), n - self.tolerated(n) - self._others)


class MultiKrum(Krum):
    """The mean of the m updates with the smallest scores of Krum.

    After Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine learning with adversaries: Byzantine tolerant gradient
    descent", NeurIPS 2017.
    """

    kind: Literal["multi_krum"] = "multi_krum"  # type: ignore[assignment]
    m: int | None = Field(
        None, ge=1, le=MOST_ROLES, description="Number of updates in the mean; n - f if it is not given."
    )

    def kept(self, n: int) -> int:
        return n - self.tolerated(n) if self.m is None else self.m

    def fewest(self, f: int) -> int:
        return max(super().fewest(f), self.m or 0)

    def unable(self, n: int) -> str:
        if self.m is not None and self.m > n:
            return f"{self.kind} takes m = {self.m} updates, and there are {n}"
        return super().unable(n)


class Bulyan(Tolerant):
    """Per coordinate, the mean of the n - 4 f values nearest to the median, of n - 2 f updates that Krum selects.

    Krum selects one update after another, each time among those that are left; max(1, left - f - 2) neighbours count.
    After El Mhamdi, Guerraoui and Rouault, "The hidden vulnerability of distributed learning in Byzantium", ICML 2018,
    which needs n >= 4 f + 3.
    """

    granularity: ClassVar[Granularity] = "vector"
    checks: ClassVar[bool] = True
    bound: ClassVar[tuple[int, int]] = (4, 3)
    unweighted: ClassVar[str] = SELECTS

    kind: Literal["bulyan"] = "bulyan"

    def fewest(self, f: int) -> int:
        return 4 * f + 3

    def combine(self, updates: Updates, context: Context = NO_CONTEXT) -> Combined:
        n = len(updates)
        f, products = self.tolerated(n), finite_products(whole_gram(updates), updates)
        chosen = np.sort(self._selected(squared_distances(products), n - 2 * f, f))
        found = mean_around_median(updates.select(chosen), ranks_of_median(len(chosen), "mean"), n - 4 * f)
        accepted = np.zeros(updates.used.shape, np.bool_)
        accepted[chosen] = found.accepted
        return replace(found, accepted=accepted)

    def _selected(self, distances: Float64, count: int, f: int) -> list[int]:
        """Return the updates that Krum selects, one after another."""
        left, selected = list(range(len(distances))), []
        for _ in range(count):
            neighbours = min(max(1, len(left) - f - 2), len(left) - 1)
            best = int(np.argmin(krum_scores(distances[np.ix_(left, left)], neighbours)))
            selected.append(left.pop(best))
        return selected


class Cge(LowestScores):
    """Comparative gradient elimination: the mean of the n - f updates with the smallest norms.

    After Gupta, Liu and Vaidya, "Byzantine fault-tolerant distributed machine learning using stochastic gradient
    descent (SGD) and norm-based comparative gradient elimination (CGE)", DSN workshops 2021.
    """

    compares: ClassVar[Compares] = "norms"

    kind: Literal["cge"] = "cge"

    def scores(self, products: Float64, n: int) -> Float64:
        return np.diagonal(products)


class Monna(LowestScores):
    """The mean of the validator's own update and the n - f updates nearest to it.

    After Farhadkhani, Guerraoui, Gupta, Hoang, Pinot and Stephan, "Robust collaborative learning with linear gradient
    overhead", ICML 2023, where every node takes its own update as the trusted one.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"reference"})

    compares: ClassVar[Compares] = "reference"

    kind: Literal["monna"] = "monna"

    def row(self, updates: Updates, context: Context) -> Vector | None:
        return context.reference

    def weights(self, products: Float64, n: int) -> Float64:
        return equal_weights(np.append(self.selected(products, n), n), n + 1)


class Aksel(LowestScores):
    """The mean of the updates nearest to the median per coordinate.

    After Boussetta, El-Mhamdi, Guerraoui, Maurer and Rouault, "AKSEL: fast Byzantine SGD", OPODIS 2020.
    """

    compares: ClassVar[Compares] = "reference"

    kind: Literal["aksel"] = "aksel"
    keep: Literal["half", "n-f"] = Field(
        "half", description="Number of updates in the mean: (n + 1) / 2, rounded down, or n - f."
    )

    def kept(self, n: int) -> int:
        return (n + 1) // 2 if self.keep == "half" else super().kept(n)

    def row(self, updates: Updates, context: Context) -> Vector | None:
        return median_of(updates)


class SubsetRule(Weighted, Tolerant, ABC):
    """The mean of the n - f updates that are best as a subset; of equally good subsets, the first in the order of n."""

    unweighted: ClassVar[str] = SELECTS

    most: ClassVar[int] = 1 << 18
    """The largest number of subsets that are compared."""

    def unable(self, n: int) -> str:
        if reason := super().unable(n):
            return reason
        count = comb(n, self.tolerated(n))
        if count > self.most:
            return f"{self.kind} would compare {count:,} subsets of {n} updates: use at most {self.most:,}"
        return ""

    @abstractmethod
    def badness(self, products: Float64, subsets: Indices) -> Float64:
        """Return what the best subset has least of, for subsets `[s, n - f]`: `[s]`."""

    def weights(self, products: Float64, n: int) -> Float64:
        size = n - self.tolerated(n)
        subsets = np.fromiter(chain.from_iterable(combinations(range(n), size)), np.intp).reshape(-1, size)
        parts = np.array_split(subsets, max(1, subsets.size * size >> 22))
        bad = np.concatenate([self.badness(products, part) for part in parts])
        return equal_weights(subsets[int(np.argmin(bad))], n)


class Mda(SubsetRule):
    """Minimum-diameter averaging: the mean of the n - f updates with the smallest largest distance between two of them.

    After El Mhamdi, Guerraoui, Guirguis, Hoang and Rouault, "Genuinely distributed Byzantine machine learning",
    PODC 2020.
    """

    kind: Literal["mda"] = "mda"

    def badness(self, products: Float64, subsets: Indices) -> Float64:
        distances = squared_distances(products)
        worst: Float64 = np.zeros(len(subsets))
        for first, second in combinations(range(subsets.shape[1]), 2):
            np.maximum(worst, distances[subsets[:, first], subsets[:, second]], out=worst)
        return worst


class Smea(SubsetRule):
    """Smallest maximum eigenvalue averaging: the mean of the n - f updates with the smallest variance in any direction.

    After Allouah, Guerraoui, Gupta, Pinot and Stephan, "On the privacy-robustness-utility trilemma in distributed
    learning", ICML 2023.
    """

    kind: Literal["smea"] = "smea"
    most: ClassVar[int] = 1 << 16

    def badness(self, products: Float64, subsets: Indices) -> Float64:
        among = products[subsets[:, :, None], subsets[:, None, :]]
        means = among.mean(axis=2)
        centred = among - means[:, :, None] - means[:, None, :] + means.mean(axis=1)[:, None, None]
        largest: Float64 = np.linalg.eigvalsh(centred)[:, -1]
        return largest
