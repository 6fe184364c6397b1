"""Zeno++, as ZenoPS uses it: compares an update with the validator's own update."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.numerics.blocks import Float64, tiles
from hpcps.numerics.kernels import worthwhile
from hpcps.numerics.layout import Mask, Vector
from hpcps.numerics.products import products
from hpcps.numerics.updates import Updates
from hpcps.rules import on_device
from hpcps.rules.asynchronous import AsyncRule, Decision
from hpcps.rules.base import Need, Sees
from hpcps.rules.context import AsyncContext
from hpcps.rules.on_device import DeviceDecider


class ZenoPlusPlus(AsyncRule):
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

    def device_kernel(self) -> DeviceDecider | None:
        """See `AsyncRule.device_kernel`."""
        return on_device.clip_or_negate(self.threshold)

    def decide(self, update: Vector, context: AsyncContext) -> Decision:
        """See `AsyncRule.decide`; sums are float64, one per block."""
        reference, sent = context.reference, context.sent
        assert reference is not None, "zeno++ needs the validator's own update"
        whole = Updates.of(update[None, :], context.layout)
        with np.errstate(invalid="ignore", over="ignore"):  # v may not be finite after the model has diverged
            sums = products(whole, reference)
            inner, theirs, own = sums.inner[0], sums.squares[0], sums.own
            applied: Mask = sent & (theirs > 0) & (own > 0) & np.isfinite(own) & np.isfinite(theirs)
        squares = np.where(applied, own, 1.0), np.where(applied, theirs, 1.0)
        ratio = np.sqrt(squares[0]) / np.sqrt(squares[1])
        cosine = np.where(applied, inner, 0.0) / (np.sqrt(squares[0]) * np.sqrt(squares[1]))
        negated: Mask = applied & (cosine < self.threshold)
        factor = np.minimum(ratio, 1.0) * np.where(negated, cosine, 1.0)
        _scale(whole, factor, update)
        return Decision(applied, negated)


def _scale(update: Updates, factors: Float64, out: Vector) -> None:
    """Multiply an update by a factor for each block `[B]`, in float64."""
    if worthwhile(update):
        from hpcps.numerics.kernels import engine

        engine.scale(update, factors, out)
        return
    for tile in tiles(update.layout, 1):
        out[tile.columns] = tile.spread(factors) * update.tile(tile.columns)[0]
