"""Zeno, as ZenoPS uses it: updates are compared with the validator's own."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.blocks import tiles
from hpcps.layout import Layout, Mask, Vector
from hpcps.rules.base import Combined, Rule


class Zeno(Rule):
    """Per block, the mean of the updates that resemble the validator's own update v; zero if none does.

    Update u is accepted iff <u, v> > rho |v|^2 and |u|^2 < (1 + epsilon) |v|^2. So a zero update is accepted
    iff rho < 0, and a v that is zero or not finite accepts nothing. After Xie, Koyejo and Gupta, "ZenoPS: a
    distributed learning system integrating communication efficiency and security", Algorithms 15(7):233,
    2022, whose artifact calls our rho `zeno-eta` and our epsilon `rho`.
    """

    scores: ClassVar[bool] = True

    kind: Literal["zeno"] = "zeno"
    rho: float = Field(
        -0.001, description="Inner product with v that must be exceeded, in units of |v|^2; -0.001 in ZenoPS."
    )
    epsilon: float = Field(
        0.6, gt=-1, description="How far the squared norm may exceed |v|^2, in units of |v|^2; 0.6 in ZenoPS."
    )

    def combine(self, updates: Vector, layout: Layout, reference: Vector | None = None) -> Combined:
        """See `Rule.combine`; sums are float64, in the order of the updates."""
        assert reference is not None, "zeno compares with the validator's own update"
        n = len(updates)
        accepted = self._accepts(updates, layout, reference)
        weights = accepted.astype(np.float64)
        counts = np.maximum(weights.sum(axis=0), 1.0)
        combined = np.zeros(layout.size, dtype=np.float32)
        for tile in tiles(layout, n):
            total = np.zeros(tile.columns.stop - tile.columns.start)
            for weight, update in zip(tile.spread(weights), updates[:, tile.columns], strict=True):
                total += weight * update
            combined[tile.columns] = total / tile.spread(counts)
        return Combined(combined, accepted)

    def _accepts(self, updates: Vector, layout: Layout, v: Vector) -> Mask:
        """Tell which (update, block) pairs are accepted: `[n, B]`.

        Products of two float32 are exact in float64 and neither overflow nor vanish there; all sums of a
        block have the same order, so that u = v meets either threshold exactly.
        """
        shape = (len(updates), len(layout.blocks))
        inner, squares, limit = np.zeros(shape), np.zeros(shape), np.zeros(shape[1])
        with np.errstate(invalid="ignore", over="ignore"):  # v may be anything once the model has diverged
            for tile in tiles(layout, len(updates)):
                own = v[tile.columns].astype(np.float64)
                limit[tile.blocks] += tile.sums(own * own)
                theirs = updates[:, tile.columns].astype(np.float64)
                inner[:, tile.blocks] += tile.sums(theirs * own)
                theirs *= theirs
                squares[:, tile.blocks] += tile.sums(theirs)
            resembles = inner > self.rho * limit
            short = squares < (1.0 + self.epsilon) * limit
        accepted: Mask = resembles & short & np.isfinite(limit)
        return accepted
