"""The base class of rules whose result is a weighted sum of the updates, and those that weigh all updates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hpcps.numerics import arrays
from hpcps.numerics.blocks import Float64
from hpcps.numerics.layout import Vector
from hpcps.numerics.operations import (
    finite_products,
    gram,
    norms_gram,
    over_blocks,
    put,
    reference_gram,
    screen,
    weighted_sum,
    whole_gram,
    zero_result,
)
from hpcps.numerics.updates import Combined, Destination, Updates
from hpcps.registry.config import LARGEST_FACTOR, MOST
from hpcps.rules.base import Granularity, Need, Rule
from hpcps.rules.context import NO_CONTEXT, Context
from hpcps.rules.stage import prior_weights

Compares = Literal["pairs", "reference", "norms"]
"""The inner products that weights depend on: those of all pairs; those of each update with `Weighted.row`; or none but
the squared norms."""


class Weighted(Rule, ABC):
    """A rule that weighs each update by inner products: distances, norms and angles follow from them.

    One pass reads the updates for their inner products, and a second one adds them up. No update is copied.
    """

    granularity: ClassVar[Granularity] = "vector"
    checks: ClassVar[bool] = True

    compares: ClassVar[Compares] = "pairs"
    """The inner products that `weights` uses; the others may be zero."""

    per: Literal["vector", "block"] = Field(
        "vector", description="What one decision is about: the whole update, or each block apart from the others."
    )

    @property
    def own_scope(self) -> Granularity:
        return self.per

    @abstractmethod
    def weights(self, products: Float64, n: int) -> Float64:
        """Return the weight of each row in the result: `[m]`, finite; rows of weight 0 are not accepted.

        A rule that is `weighted` gets a further argument, `prior`: how much each update counts before it is compared
        with others, `[n]`, with the sum n.

        Args:
            products: the inner products of all pairs of rows, `[m, m]`: the n updates, and `row` if there is one.
            n: the number of updates, which `fewest` allows.
        """

    def row(self, updates: Updates, context: Context) -> Vector | None:
        """Return one more row `[d]` that the updates are compared with; by default none."""
        return None

    def combine(self, updates: Updates, context: Context = NO_CONTEXT) -> Combined:
        n, layout = len(updates), updates.layout
        row, known = self.row(updates, context), np.ones(len(layout.blocks), np.bool_)
        if row is not None:
            own = Updates.of(row[None, :], layout)
            known = ~screen(own)[0]
            row = own.without(~known[None, :]).tile(slice(0, layout.size))[0] if not known.all() else row
        if not (known.any() if self.per == "block" else known.all()):
            return zero_result(updates)
        weigh: Callable[..., Float64] = self.weights
        prior = [updates.relative_weights] if self.weighted else []
        if self.per == "block":
            products = finite_products(self._products(updates, row), updates)
            weights = np.array([weigh(block, n, *prior) for block in products]).T.reshape(products.shape[1], -1)
            weights[:, ~known] = 0.0
        else:
            weights = weigh(finite_products(self._whole_products(updates, row), updates), n, *prior)
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


def equal_weights(chosen: NDArray[np.intp], rows: int) -> Float64:
    """Return the weights of the mean of the chosen rows: `[rows]`."""
    weights = np.zeros(rows)
    weights[chosen] = 1 / len(chosen)
    return weights


class NormClipping(Weighted):
    """The mean of the updates after those with a larger norm than the radius are scaled down to it.

    With weights it is their weighted mean.

    After Sun, Kairouz, Suresh and McMahan, "Can you really backdoor federated learning?", arXiv 1911.07963.
    """

    compares: ClassVar[Compares] = "norms"
    weighted: ClassVar[bool] = True

    kind: Literal["norm_clipping"] = "norm_clipping"
    radius: float = Field(1.0, gt=0, le=LARGEST_FACTOR, description="The largest norm of an update.")

    def weights(self, products: Float64, n: int, prior: Float64 | None = None) -> Float64:
        return shrink(np.sqrt(np.diagonal(products)), self.radius) * prior_weights(prior, n) / n


class CenteredClipping(Weighted):
    """The result v of the round before, plus the mean of the differences of the updates to it, clipped to a radius.

    A step is v + mean of min(1, radius / |x - v|) (x - v). In the first round v is zero. With weights the mean is the
    weighted one. After Karimireddy, He and Jaggi, "Learning from history for Byzantine robust optimization", ICML 2021.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"state"})
    weighted: ClassVar[bool] = True

    kind: Literal["centered_clipping"] = "centered_clipping"
    radius: float = Field(100.0, gt=0, le=LARGEST_FACTOR, description="The largest norm of a difference.")
    iterations: int = Field(1, ge=1, le=MOST, description="Number of steps in a round.")

    @property
    def own_scope(self) -> Granularity:
        return "vector"  # whatever `per` says: the state is a whole vector

    def row(self, updates: Updates, context: Context) -> Vector:
        before = context.state.setdefault("before", np.zeros(updates.layout.size, np.float32))
        return before if updates.on_host else arrays.like(updates.empty(0), before)

    def weights(self, products: Float64, n: int, prior: Float64 | None = None) -> Float64:
        found = np.append(np.zeros(n), 1.0)  # the sum of the rows times these numbers is v
        for _ in range(self.iterations):
            shares = shrink(distances(products, found)[:n], self.radius) * prior_weights(prior, n) / n
            found = np.append(shares, 0.0) + (1 - shares.sum()) * found
        return found

    def _products(self, updates: Updates, row: Vector | None) -> Float64:
        if self.iterations == 1 and row is not None and not updates.lazy:  # no two updates are compared
            return reference_gram(updates, row)
        return super()._products(updates, row)

    def combine(self, updates: Updates, context: Context = NO_CONTEXT) -> Combined:
        to = updates.to
        apart = Destination(out=to.out if to.base is None else None, threads=to.threads)
        combined = super().combine(updates.onto(apart), context)
        found = arrays.on_host(combined.update)
        if len(updates):
            np.copyto(context.state.setdefault("before", found), found)
        return combined if to.base is None else put(updates, found, combined.accepted)


def shrink(norms: Float64, radius: float) -> Float64:
    """Return the factors that bound these norms by the radius; 1 for shorter ones."""
    factors: Float64 = radius / np.maximum(norms, radius)
    return factors


def distances(products: Float64, weights: Float64) -> Float64:
    """Return the distance of each row to the sum of the rows times their weights, from the inner products: `[m]`."""
    inner = (products * weights).sum(axis=1)
    squared = np.diagonal(products) - 2 * inner + (weights * inner).sum()
    found: Float64 = np.sqrt(np.maximum(squared, 0.0))
    return found
