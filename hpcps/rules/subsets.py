"""Rules that average the best subset of n - f updates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain, combinations
from math import comb
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics.blocks import Float64
from hpcps.numerics.gram import squared_distances
from hpcps.rules.tolerance import Tolerant
from hpcps.rules.weighted import Weighted, equal_weights

Indices = NDArray[np.intp]


class SubsetRule(Weighted, Tolerant, ABC):
    """The mean of the n - f updates that are best as a subset; of equally good subsets, the first in the order of n."""

    most: ClassVar[int] = 1 << 18
    """The largest number of subsets that are compared."""

    def unable(self, n: int) -> str:
        if reason := super().unable(n):
            return reason
        count = comb(n, self.byzantine(n))
        if count > self.most:
            return f"{self.kind} would compare {count:,} subsets of {n} updates: use at most {self.most:,}"
        return ""

    @abstractmethod
    def badness(self, products: Float64, subsets: Indices) -> Float64:
        """Return what the best subset has least of, for subsets `[s, n - f]`: `[s]`."""

    def weights(self, products: Float64, n: int) -> Float64:
        size = n - self.byzantine(n)
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
        """See `SubsetRule.badness`: the squared diameter."""
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
        """See `SubsetRule.badness`: the largest eigenvalue of the covariance, times the number of updates."""
        among = products[subsets[:, :, None], subsets[:, None, :]]
        means = among.mean(axis=2)
        centred = among - means[:, :, None] - means[:, None, :] + means.mean(axis=1)[:, None, None]
        largest: Float64 = np.linalg.eigvalsh(centred)[:, -1]
        return largest
