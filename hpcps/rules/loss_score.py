"""The score of Zeno of 2019: how much an update lowers the loss on the validator's data."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.numerics import arrays
from hpcps.numerics.destination import Combined, Destination
from hpcps.numerics.gram import whole_gram
from hpcps.numerics.operations import nothing, weighted_sum
from hpcps.numerics.updates import Updates
from hpcps.registry.config import LARGEST_FACTOR
from hpcps.rules.base import Need, Sees
from hpcps.rules.context import NOTHING, Context
from hpcps.rules.tolerance import Tolerant
from hpcps.rules.weighted import equal_weights


class LossScore(Tolerant):
    """The mean of the updates that lower the loss on a batch of the validator's data most.

    The score of an update x is L(w) - L(w + scale x) - rho |x|^2, for the model w of this round. After Xie, Koyejo and
    Gupta, "Zeno: distributed stochastic gradient descent with suspicion-based fault-tolerance", ICML 2019. With
    `normalise`, the difference of the losses is divided by L(w), as in Gauntlet.
    """

    sees: ClassVar[Sees] = "vector"
    needs: ClassVar[frozenset[Need]] = frozenset({"loss"})

    kind: Literal["loss_score"] = "loss_score"
    scale: float = Field(1.0, gt=0, le=LARGEST_FACTOR, description="Factor of the update in the model that is tried.")
    rho: float = Field(0.0, ge=0, le=LARGEST_FACTOR, description="Penalty of the squared norm; 0 in Gauntlet.")
    normalise: bool = Field(
        False, description="Divide the decrease of the loss by the loss before, so that `rho` does not depend on it."
    )
    keep: Literal["n-f", "positive"] = Field(
        "n-f", description="Which updates enter the mean: the n - f with the largest scores, or all with positive ones."
    )

    def combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
        n, size, loss = len(updates), updates.layout.size, context.loss
        if n == 0 or self.unable(n):
            return nothing(updates)
        assert loss is not None, "loss_score needs the loss on a batch"
        squares = np.diagonal(whole_gram(updates)) if self.rho else np.zeros(n)
        before, row = loss(np.zeros(size, np.float32)), updates.empty(size)
        apart = updates.onto(Destination(out=row, threads=updates.to.threads))
        unit = before if self.normalise and before > 0 else 1.0
        scores = np.empty(n)
        for k in range(n):
            one = np.zeros(n)
            one[k] = self.scale
            weighted_sum(apart, one)
            scores[k] = (before - loss(arrays.on_host(row))) / unit - self.rho * squares[k]
        scores = np.where(np.isnan(scores), -np.inf, scores)
        best = np.argsort(-scores, kind="stable")[: n - self.byzantine(n)]
        chosen = best if self.keep == "n-f" else np.flatnonzero(scores > 0)
        if not len(chosen):
            return nothing(updates)
        return weighted_sum(updates, equal_weights(chosen, n))
