"""The base class of rules whose result is a weighted sum of the updates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hpcps.numerics.blocks import Float64
from hpcps.numerics.gram import gram
from hpcps.numerics.layout import Vector
from hpcps.numerics.updates import Updates
from hpcps.numerics.weighted import weighted_sum
from hpcps.rules.base import Rule, Sees
from hpcps.rules.combined import Combined
from hpcps.rules.context import NOTHING, Context
from hpcps.rules.ranks import nothing


class Weighted(Rule, ABC):
    """A rule that weighs each update by inner products: distances, norms and angles follow from them.

    One pass reads the updates for the inner products of all pairs, and a second one adds them up. No update is copied.
    """

    sees: ClassVar[Sees] = "vector"

    per: Literal["vector", "block"] = Field(
        "vector", description="What one decision is about: the whole update, or each block apart from the others."
    )

    @property
    def scope(self) -> Sees:
        """See `BaseRule.scope`."""
        return self.per

    @abstractmethod
    def weights(self, products: Float64, n: int) -> Float64:
        """Return the weight of each row in the result: `[m]`, finite; rows of weight 0 are not accepted.

        Args:
            products: the inner products of all pairs of rows, `[m, m]`: the n updates, and `row` if there is one.
            n: the number of updates, for which `unable` returns nothing.
        """

    def row(self, updates: Updates, context: Context) -> Vector | None:
        """Return one more row `[d]` that the updates are compared with; by default none."""
        return None

    def combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
        """See `Rule.combine`."""
        n = len(updates)
        row = None if n == 0 or self.unable(n) else self.row(updates, context)
        if n == 0 or self.unable(n) or (row is not None and not np.isfinite(row).all()):
            return nothing(updates, context)
        products = gram(updates, row, context.threads)
        weights = self._per_block(products, n)
        rows = updates if row is None else Updates.join((updates, Updates.of(row[None, :], updates.layout)))
        result, finite = weighted_sum(rows, weights, context.base, context.out, context.threads)
        return Combined(result, finite, weights[:n] != 0)

    def _per_block(self, products: Float64, n: int) -> Float64:
        """Return the weights of the rows in each block: `[m, B]`."""
        if self.per == "block":
            return np.array([self.weights(block, n) for block in products]).T.reshape(products.shape[1], -1)
        whole = np.zeros(products.shape[1:])
        for block in products:
            whole += block
        return np.repeat(self.weights(whole, n)[:, None], len(products), axis=1)


def equal_weights(chosen: NDArray[np.intp], rows: int) -> Float64:
    """Return the weights of the mean of the chosen rows: `[rows]`."""
    weights = np.zeros(rows)
    weights[chosen] = 1 / len(chosen)
    return weights
