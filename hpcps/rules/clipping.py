"""Rules that scale long updates down."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.numerics import arrays
from hpcps.numerics.blocks import Float64
from hpcps.numerics.destination import Combined, Destination
from hpcps.numerics.gram import reference_gram
from hpcps.numerics.layout import Vector
from hpcps.numerics.operations import put
from hpcps.numerics.updates import Updates
from hpcps.registry.config import LARGEST_FACTOR, MOST
from hpcps.rules.base import Need, Sees
from hpcps.rules.context import NOTHING, Context
from hpcps.rules.weighted import Compares, Weighted


class NormClipping(Weighted):
    """The mean of the updates after those with a larger norm than the radius are scaled down to it.

    After Sun, Kairouz, Suresh and McMahan, "Can you really backdoor federated learning?", arXiv 1911.07963.
    """

    compares: ClassVar[Compares] = "norms"

    kind: Literal["norm_clipping"] = "norm_clipping"
    radius: float = Field(1.0, gt=0, le=LARGEST_FACTOR, description="The largest norm of an update.")

    def weights(self, products: Float64, n: int) -> Float64:
        return shrink(np.sqrt(np.diagonal(products)), self.radius) / n


class CenteredClipping(Weighted):
    """The result v of the round before, plus the mean of the differences of the updates to it, clipped to a radius.

    A step is v + mean of min(1, radius / |x - v|) (x - v). In the first round v is zero. After Karimireddy, He and
    Jaggi, "Learning from history for Byzantine robust optimization", ICML 2021.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"state"})

    kind: Literal["centered_clipping"] = "centered_clipping"
    radius: float = Field(100.0, gt=0, le=LARGEST_FACTOR, description="The largest norm of a difference.")
    iterations: int = Field(1, ge=1, le=MOST, description="Number of steps in a round.")

    @property
    def own_scope(self) -> Sees:
        """See `BaseRule.own_scope`; the state is of the whole vector."""
        return "vector"

    def row(self, updates: Updates, context: Context) -> Vector:
        """See `Weighted.row`: the result of the round before."""
        before = context.state.setdefault("before", np.zeros(updates.layout.size, np.float32))
        return before if updates.on_host else arrays.like(updates.empty(0), before)

    def weights(self, products: Float64, n: int) -> Float64:
        found = np.append(np.zeros(n), 1.0)  # the sum of the rows times these numbers is v
        for _ in range(self.iterations):
            inner = (products * found).sum(axis=1)
            squared = np.diagonal(products)[:n] - 2 * inner[:n] + (found * inner).sum()
            shares = shrink(np.sqrt(np.maximum(squared, 0.0)), self.radius) / n
            found = np.append(shares, 0.0) + (1 - shares.sum()) * found
        return found

    def _products(self, updates: Updates, row: Vector | None) -> Float64:
        """See `Weighted._products`: the first step compares no two updates."""
        if self.iterations == 1 and row is not None and not updates.lazy:
            return reference_gram(updates, row)
        return super()._products(updates, row)

    def combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
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
