"""The base class of rules whose result is a weighted sum of the updates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hpcps.numerics.blocks import Float64
from hpcps.numerics.definitions import require_finite
from hpcps.numerics.destination import Combined
from hpcps.numerics.gram import gram, norms_gram, over_blocks, reference_gram, whole_gram
from hpcps.numerics.layout import Vector
from hpcps.numerics.operations import nothing, screen, weighted_sum
from hpcps.numerics.updates import Updates
from hpcps.rules.base import Rule, Sees
from hpcps.rules.context import NOTHING, Context

Compares = Literal["pairs", "reference", "norms"]
"""The inner products that weights depend on: those of all pairs; those of each update with `Weighted.row`; or none but
the squared norms."""


class Weighted(Rule, ABC):
    """A rule that weighs each update by inner products: distances, norms and angles follow from them.

    One pass reads the updates for their inner products, and a second one adds them up. No update is copied.
    """

    sees: ClassVar[Sees] = "vector"
    checks: ClassVar[bool] = True

    compares: ClassVar[Compares] = "pairs"
    """The inner products that `weights` uses; the others may be zero."""

    per: Literal["vector", "block"] = Field(
        "vector", description="What one decision is about: the whole update, or each block apart from the others."
    )

    @property
    def own_scope(self) -> Sees:
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
        n, layout = len(updates), updates.layout
        if n == 0 or self.unable(n):
            return nothing(updates)
        row, known = self.row(updates, context), np.ones(len(layout.blocks), np.bool_)
        if row is not None:
            own = Updates.of(row[None, :], layout)
            known = ~screen(own)[0]
            row = own.without(~known[None, :]).tile(slice(0, layout.size))[0] if not known.all() else row
        if not (known.any() if self.per == "block" else known.all()):
            return nothing(updates)
        if self.per == "block":
            products = finite_products(self._products(updates, row), updates)
            weights = np.array([self.weights(block, n) for block in products]).T.reshape(products.shape[1], -1)
            weights[:, ~known] = 0.0
        else:
            weights = self.weights(finite_products(self._whole_products(updates, row), updates), n)
        return weighted_sum(updates, weights, row)

    def _products(self, updates: Updates, row: Vector | None) -> Float64:
        """Return the inner products that the weights depend on, per block: `[B, m, m]`."""
        if self.compares == "norms" and not updates.lazy:
            return norms_gram(updates)
        if self.compares == "reference" and row is not None and not updates.lazy:
            return reference_gram(updates, row)
        return gram(updates, row)

    def _whole_products(self, updates: Updates, row: Vector | None) -> Float64:
        """Return the inner products of whole updates that the weights depend on: `[m, m]`."""
        if updates.lazy:
            return whole_gram(updates, row)
        return over_blocks(self._products(updates, row))


def finite_products(products: Float64, updates: Updates) -> Float64:
    """Return the inner products `[…, m, m]`, of which the first rows are those of the updates.

    The square of an update is finite if and only if its values are.

    Raises:
        NotFiniteError: the updates are not `checked`, and not finite.
    """
    require_finite(np.diagonal(products, axis1=-2, axis2=-1)[..., : len(updates)], updates)
    return products


def equal_weights(chosen: NDArray[np.intp], rows: int) -> Float64:
    """Return the weights of the mean of the chosen rows: `[rows]`."""
    weights = np.zeros(rows)
    weights[chosen] = 1 / len(chosen)
    return weights
