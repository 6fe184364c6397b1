"""Rules that trust the validator: they compare updates with its own update, or measure the loss on its data."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.numerics import arrays
from hpcps.numerics.blocks import Float64, Products
from hpcps.numerics.layout import Mask, Vector
from hpcps.numerics.operations import mean_of_accepted, products, weighted_sum, whole_gram, zero_result
from hpcps.numerics.updates import Combined, Destination, Updates
from hpcps.registry.config import LARGEST_FACTOR
from hpcps.rules.asynchronous import Decision, ScalingRule
from hpcps.rules.base import Granularity, Need, Rule, Tolerant
from hpcps.rules.context import NO_CONTEXT, AsyncContext, Context
from hpcps.rules.weighted import Compares, Weighted, equal_weights

TRUSTED = "how an update compares with the validator's data decides what it counts"


class Zeno(Rule):
    """Per block, the mean of the updates that are similar to the validator's own update v; zero if none is.

    An update u is accepted iff <u, v> > rho |v|^2 and |u|^2 < (1 + epsilon) |v|^2. So a zero update is accepted iff
    rho < 0, and no update is accepted if v is zero or not finite. After Xie, Koyejo and Gupta, "ZenoPS: a distributed
    learning system integrating communication efficiency and security", Algorithms 15(7):233, 2022, whose artifact
    calls our rho `zeno-eta` and our epsilon `rho`.
    """

    granularity: ClassVar[Granularity] = "block"
    needs: ClassVar[frozenset[Need]] = frozenset({"reference"})
    checks: ClassVar[bool] = True
    unweighted: ClassVar[str] = TRUSTED

    kind: Literal["zeno"] = "zeno"
    rho: float = Field(
        -0.001,
        ge=-LARGEST_FACTOR,
        le=LARGEST_FACTOR,
        description="Lower bound of the inner product with v, in units of |v|^2; -0.001 in ZenoPS.",
    )
    epsilon: float = Field(
        0.6,
        gt=-1,
        le=LARGEST_FACTOR,
        description="Upper bound of the squared norm's excess over |v|^2, in units of |v|^2; 0.6 in ZenoPS.",
    )

    def combine(self, updates: Updates, context: Context = NO_CONTEXT) -> Combined:
        assert context.reference is not None, "zeno needs the validator's own update"
        return mean_of_accepted(updates, context.reference, self._accepts, zeros=self.rho < 0)

    def _accepts(self, sums: Products) -> Mask:
        """Return the (update, block) pairs that are accepted: `[n, B]`; u = v meets either threshold exactly."""
        resembles = sums.inner > self.rho * sums.own
        short = sums.squares < (1.0 + self.epsilon) * sums.own
        accepted: Mask = resembles & short & np.isfinite(sums.own)
        return accepted


class ZenoPlusPlus(ScalingRule):
    """Per block: clips the update u to the norm of the validator's own update v, and negates it if they are opposed.

    u is scaled to |v| if |u| > |v|. With s = cos(u, v), u is applied if s >= threshold. Else s u is applied, which is u
    negated and shrunk. A zero u changes nothing. If v is zero or not finite, nothing is applied. After Xie, Koyejo and
    Gupta, "ZenoPS: a distributed learning system integrating communication efficiency and security", Algorithms
    15(7):233, 2022.
    """

    granularity: ClassVar[Granularity] = "block"
    needs: ClassVar[frozenset[Need]] = frozenset({"reference"})
    unweighted: ClassVar[str] = "it bounds the norm of what is applied, which a weight would change"

    kind: Literal["zeno++"] = "zeno++"
    threshold: float = Field(
        -0.02, ge=-1, le=0, description="Cosine with v below which an update is negated; -0.02 in ZenoPS."
    )

    def factors(self, update: Updates, context: AsyncContext) -> tuple[Decision, Float64 | None]:
        reference, sent = context.reference, context.sent
        assert reference is not None, "zeno++ needs the validator's own update"
        with np.errstate(invalid="ignore", over="ignore"):  # v may not be finite after the model has diverged
            sums = products(update, reference)
            inner, theirs, own = sums.inner[0], sums.squares[0], sums.own
            applied: Mask = sent & (theirs > 0) & (own > 0) & np.isfinite(own) & np.isfinite(theirs)
        squares = np.where(applied, own, 1.0), np.where(applied, theirs, 1.0)
        ratio = np.sqrt(squares[0]) / np.sqrt(squares[1])
        cosine = np.where(applied, inner, 0.0) / (np.sqrt(squares[0]) * np.sqrt(squares[1]))
        negated: Mask = applied & (cosine < self.threshold)
        return Decision(applied, negated), np.minimum(ratio, 1.0) * np.where(negated, cosine, 1.0)


class Fltrust(Weighted):
    """The mean of the updates, scaled to the norm of the validator's own update and weighted by their similarity to it.

    An update's weight is its cosine with the validator's own update; those with a negative one do not count. If none
    counts, the result is zero. After Cao, Fang, Liu and Gong, "FLTrust: Byzantine-robust federated learning via trust
    bootstrapping", NDSS 2021.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"reference"})
    compares: ClassVar[Compares] = "reference"
    unweighted: ClassVar[str] = TRUSTED

    kind: Literal["fltrust"] = "fltrust"

    def row(self, updates: Updates, context: Context) -> Vector | None:
        return context.reference

    def weights(self, products: Float64, n: int) -> Float64:
        norms, found = np.sqrt(np.diagonal(products)), np.zeros(n + 1)
        filled = (norms[:n] > 0) & (norms[n] > 0)
        cosines = np.zeros(n)
        cosines[filled] = np.maximum(products[n, :n][filled] / norms[n] / norms[:n][filled], 0.0)
        if (total := cosines.sum()) > 0:
            found[:n][filled] = cosines[filled] / total * norms[n] / norms[:n][filled]
        return found


class LossScore(Tolerant):
    """The mean of the updates that lower the loss on a batch of the validator's data most.

    The score of an update x is L(w) - L(w + scale x) - rho |x|^2, for the model w of this round. After Xie, Koyejo and
    Gupta, "Zeno: distributed stochastic gradient descent with suspicion-based fault-tolerance", ICML 2019. With
    `normalise`, the difference of the losses is divided by L(w), as in Gauntlet.
    """

    granularity: ClassVar[Granularity] = "vector"
    needs: ClassVar[frozenset[Need]] = frozenset({"loss"})
    unweighted: ClassVar[str] = TRUSTED

    kind: Literal["loss_score"] = "loss_score"
    scale: float = Field(1.0, gt=0, le=LARGEST_FACTOR, description="Factor of the update in the model that is tried.")
    rho: float = Field(0.0, ge=0, le=LARGEST_FACTOR, description="Penalty of the squared norm; 0 in Gauntlet.")
    normalise: bool = Field(
        False, description="Divide the decrease of the loss by the loss before, so that `rho` does not depend on it."
    )
    keep: Literal["n-f", "positive"] = Field(
        "n-f", description="Which updates enter the mean: the n - f with the largest scores, or all with positive ones."
    )

    def combine(self, updates: Updates, context: Context = NO_CONTEXT) -> Combined:
        n, size, loss = len(updates), updates.layout.size, context.loss
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
        best = np.argsort(-scores, kind="stable")[: n - self.tolerated(n)]
        chosen = best if self.keep == "n-f" else np.flatnonzero(scores > 0)
        if not len(chosen):
            return zero_result(updates)
        return weighted_sum(updates, equal_weights(chosen, n))
