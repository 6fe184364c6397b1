"""Rules that average the updates nearest to something: the origin, a trusted update, or the median."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.numerics.blocks import Float64
from hpcps.numerics.gram import squared_distances
from hpcps.numerics.layout import Vector
from hpcps.numerics.updates import Updates
from hpcps.rules.base import Need
from hpcps.rules.context import Context
from hpcps.rules.median import median_of
from hpcps.rules.tolerance import Tolerant
from hpcps.rules.weighted import Compares, Weighted, equal_weights


class NearestRule(Weighted, Tolerant, ABC):
    """The mean of the updates with the smallest distance; of equal ones, the first."""

    def kept(self, n: int) -> int:
        """Return the number of updates that enter the mean."""
        return n - self.byzantine(n)

    @abstractmethod
    def distances(self, products: Float64, n: int) -> Float64:
        """Return what the updates are ordered by: `[n]`."""

    def weights(self, products: Float64, n: int) -> Float64:
        order = np.argsort(self.distances(products, n), kind="stable")
        return equal_weights(order[: self.kept(n)], len(products))


class Cge(NearestRule):
    """Comparative gradient elimination: the mean of the n - f updates with the smallest norms.

    After Gupta, Liu and Vaidya, "Byzantine fault-tolerant distributed machine learning using stochastic gradient
    descent (SGD) and norm-based comparative gradient elimination (CGE)", DSN workshops 2021.
    """

    compares: ClassVar[Compares] = "norms"

    kind: Literal["cge"] = "cge"

    def distances(self, products: Float64, n: int) -> Float64:
        return np.diagonal(products)


class Monna(NearestRule):
    """The mean of the validator's own update and the n - f updates nearest to it.

    After Farhadkhani, Guerraoui, Gupta, Hoang, Pinot and Stephan, "Robust collaborative learning with linear gradient
    overhead", ICML 2023, where every node takes its own update as the trusted one.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"reference"})

    compares: ClassVar[Compares] = "reference"

    kind: Literal["monna"] = "monna"

    def row(self, updates: Updates, context: Context) -> Vector | None:
        return context.reference

    def distances(self, products: Float64, n: int) -> Float64:
        found: Float64 = squared_distances(products)[n, :n]
        return found

    def weights(self, products: Float64, n: int) -> Float64:
        order = np.argsort(self.distances(products, n), kind="stable")
        return equal_weights(np.append(order[: self.kept(n)], n), n + 1)


class Aksel(NearestRule):
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

    def distances(self, products: Float64, n: int) -> Float64:
        found: Float64 = squared_distances(products)[n, :n]
        return found
