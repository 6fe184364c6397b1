"""Krum and Multi-Krum."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hpcps.numerics.blocks import Float64
from hpcps.numerics.gram import squared_distances
from hpcps.registry.config import MOST_ROLES
from hpcps.rules.tolerance import Tolerant
from hpcps.rules.weighted import Weighted, equal_weights

Neighbours = Literal["n-f-2", "n-f-1"]


def scores(distances: Float64, neighbours: int) -> Float64:
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


class Krum(Weighted, Tolerant):
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

    def chosen(self, n: int) -> int:
        """Return the number of updates that enter the mean."""
        return 1

    def unable(self, n: int) -> str:
        f, fewer = self.byzantine(n), 2 if self.neighbours == "n-f-2" else 1
        if n - f - fewer < 1:
            return f"{self.kind} needs at least f + {fewer + 1} updates, and f = {f} of {n}"
        return ""

    def weights(self, products: Float64, n: int) -> Float64:
        neighbours = n - self.byzantine(n) - (2 if self.neighbours == "n-f-2" else 1)
        order: NDArray[np.intp] = np.argsort(scores(squared_distances(products), neighbours), kind="stable")
        return equal_weights(order[: self.chosen(n)], n)


class MultiKrum(Krum):
    """The mean of the m updates with the smallest scores of Krum.

    After Blanchard, El Mhamdi, Guerraoui and Stainer, "Machine learning with adversaries: Byzantine tolerant gradient
    descent", NeurIPS 2017.
    """

    kind: Literal["multi_krum"] = "multi_krum"  # type: ignore[assignment]
    m: int | None = Field(
        None, ge=1, le=MOST_ROLES, description="Number of updates in the mean; n - f if it is not given."
    )

    def chosen(self, n: int) -> int:
        return n - self.byzantine(n) if self.m is None else self.m

    def unable(self, n: int) -> str:
        if self.m is not None and self.m > n:
            return f"{self.kind} takes m = {self.m} updates, and there are {n}"
        return super().unable(n)
