"""Zeno++, as ZenoPS uses it: compares an update with the validator's own update."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.numerics.blocks import Float64
from hpcps.numerics.layout import Mask
from hpcps.numerics.operations import products
from hpcps.numerics.updates import Updates
from hpcps.rules.asynchronous import Decision, ScalingRule
from hpcps.rules.base import Need, Sees
from hpcps.rules.context import AsyncContext


class ZenoPlusPlus(ScalingRule):
    """Per block: clips the update u to the norm of the validator's own update v, and negates it if they are opposed.

    u is scaled to |v| if |u| > |v|. With s = cos(u, v), u is applied if s >= threshold. Else s u is applied, which is u
    negated and shrunk. A zero u changes nothing. If v is zero or not finite, nothing is applied. After Xie, Koyejo and
    Gupta, "ZenoPS: a distributed learning system integrating communication efficiency and security", Algorithms
    15(7):233, 2022.
    """

    sees: ClassVar[Sees] = "block"
    needs: ClassVar[frozenset[Need]] = frozenset({"reference"})

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
