"""Zeno++, as ZenoPS uses it: an update is held against the validator's own."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.blocks import Float64, tiles
from hpcps.kernels import worthwhile
from hpcps.layout import Layout, Mask, Vector
from hpcps.rules.base import AsyncRule, Judged
from hpcps.rules.products import products
from hpcps.updates import Updates


class ZenoPlusPlus(AsyncRule):
    """Per block: clips the update u to the length of the validator's own update v, and turns it if it points away.

    u is scaled to |v| if it is longer. With s = cos(u, v): if s >= threshold u is applied, else s u, which turns it
    round and shrinks it. A zero u changes nothing; against a v that is zero or not finite nothing is applied. After
    Xie, Koyejo and Gupta, "ZenoPS: a distributed learning system integrating communication efficiency and security",
    Algorithms 15(7):233, 2022.
    """

    scores: ClassVar[bool] = True

    kind: Literal["zeno++"] = "zeno++"
    threshold: float = Field(
        -0.02, ge=-1, le=0, description="Cosine with v below which an update is turned round; -0.02 in ZenoPS."
    )

    def judge(self, update: Vector, sent: Mask, layout: Layout, reference: Vector | None = None) -> Judged:
        """See `AsyncRule.judge`; sums are float64, one per block."""
        assert reference is not None, "zeno++ compares with the validator's own update"
        whole = Updates.of(update[None, :], layout)
        with np.errstate(invalid="ignore", over="ignore"):  # v may be anything once the model has diverged
            sums = products(whole, reference)
            inner, theirs, own = sums.inner[0], sums.squares[0], sums.own
            applied: Mask = sent & (theirs > 0) & (own > 0) & np.isfinite(own) & np.isfinite(theirs)
        squares = np.where(applied, own, 1.0), np.where(applied, theirs, 1.0)
        ratio = np.sqrt(squares[0]) / np.sqrt(squares[1])
        cosine = np.where(applied, inner, 0.0) / (np.sqrt(squares[0]) * np.sqrt(squares[1]))
        turned: Mask = applied & (cosine < self.threshold)
        factor = np.minimum(ratio, 1.0) * np.where(turned, cosine, 1.0)
        _scale(whole, factor, update)
        return Judged(applied, turned)


def _scale(update: Updates, factors: Float64, out: Vector) -> None:
    """Multiply an update by a factor for each block `[B]`, in float64."""
    if worthwhile(update):
        from hpcps.kernels import engine

        engine.scale(update, factors, out)
        return
    for tile in tiles(update.layout, 1):
        out[tile.columns] = tile.spread(factors) * update.tile(tile.columns)[0]
