"""Zeno++, as ZenoPS uses it: an update is held against the validator's own."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.blocks import Float64, tiles
from hpcps.layout import Layout, Mask, Vector
from hpcps.rules.base import AsyncRule, Judged


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
        inner, theirs, own = self._products(update, layout, reference)
        with np.errstate(invalid="ignore", over="ignore"):  # v may be anything once the model has diverged
            applied: Mask = sent & (theirs > 0) & (own > 0) & np.isfinite(own) & np.isfinite(theirs)
        squares = np.where(applied, own, 1.0), np.where(applied, theirs, 1.0)
        ratio = np.sqrt(squares[0]) / np.sqrt(squares[1])
        cosine = np.where(applied, inner, 0.0) / (np.sqrt(squares[0]) * np.sqrt(squares[1]))
        turned: Mask = applied & (cosine < self.threshold)
        factor = np.minimum(ratio, 1.0) * np.where(turned, cosine, 1.0)
        for tile in tiles(layout, 1):
            update[tile.columns] = tile.spread(factor) * update[tile.columns]
        return Judged(applied, turned)

    @staticmethod
    def _products(u: Vector, layout: Layout, v: Vector) -> tuple[Float64, Float64, Float64]:
        """Return <u, v>, |u|^2 and |v|^2 of each block, `[B]`; products of two float32 are exact in float64."""
        inner, theirs, own = (np.zeros(len(layout.blocks)) for _ in range(3))
        with np.errstate(invalid="ignore", over="ignore"):
            for tile in tiles(layout, 1):
                x, y = u[tile.columns].astype(np.float64), v[tile.columns].astype(np.float64)
                inner[tile.blocks] += tile.sums(x * y)
                x *= x
                y *= y
                theirs[tile.blocks] += tile.sums(x)
                own[tile.blocks] += tile.sums(y)
        return inner, theirs, own
