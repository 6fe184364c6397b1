"""Zeno, as ZenoPS uses it: updates are compared with the validator's own."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.blocks import tiles
from hpcps.layout import Mask, Vector
from hpcps.rules.base import Rule
from hpcps.rules.combined import Combined, Destination
from hpcps.rules.screening import finite
from hpcps.updates import Updates


class Zeno(Rule):
    """Per block, the mean of the updates that resemble the validator's own update v; zero if none does.

    Update u is accepted iff <u, v> > rho |v|^2 and |u|^2 < (1 + epsilon) |v|^2. So a zero update is accepted
    iff rho < 0, and a v that is zero or not finite accepts nothing. After Xie, Koyejo and Gupta, "ZenoPS: a
    distributed learning system integrating communication efficiency and security", Algorithms 15(7):233,
    2022, whose artifact calls our rho `zeno-eta` and our epsilon `rho`.
    """

    scores: ClassVar[bool] = True
    checks: ClassVar[bool] = True

    kind: Literal["zeno"] = "zeno"
    rho: float = Field(
        -0.001, description="Inner product with v that must be exceeded, in units of |v|^2; -0.001 in ZenoPS."
    )
    epsilon: float = Field(
        0.6, gt=-1, description="How far the squared norm may exceed |v|^2, in units of |v|^2; 0.6 in ZenoPS."
    )

    def combine(
        self,
        updates: Updates,
        reference: Vector | None = None,
        *,
        base: Vector | None = None,
        out: Vector | None = None,
    ) -> Combined:
        """See `Rule.combine`; sums are float64, in the order of the updates."""
        assert reference is not None, "zeno compares with the validator's own update"
        layout = updates.layout
        destination = Destination(layout.size, base, out)
        accepted = self._accepts(updates, reference)
        weights = accepted.astype(np.float64)
        counts = np.maximum(weights.sum(axis=0), 1.0)
        for tile in tiles(layout, len(updates)):
            total = np.zeros(tile.columns.stop - tile.columns.start)
            for weight, update in zip(tile.spread(weights), updates.tile(tile.columns), strict=True):
                total += weight * update
            destination.put(tile.columns, total / tile.spread(counts))
        return destination.combined(accepted)

    def _accepts(self, updates: Updates, v: Vector) -> Mask:
        """Tell which (update, block) pairs are accepted: `[n, B]`.

        Products of two float32 are exact in float64 and neither overflow nor vanish there; all sums of a
        block have the same order, so that u = v meets either threshold exactly. A sum of squares is finite if and
        only if all of its float32 values are.
        """
        layout = updates.layout
        shape = (len(updates), len(layout.blocks))
        inner, squares, limit = np.zeros(shape), np.zeros(shape), np.zeros(shape[1])
        with np.errstate(invalid="ignore", over="ignore"):  # v may be anything once the model has diverged
            for tile in tiles(layout, len(updates)):
                own = v[tile.columns].astype(np.float64)
                limit[tile.blocks] += tile.sums(own * own)
                theirs = updates.tile(tile.columns).astype(np.float64)
                inner[:, tile.blocks] += tile.sums(theirs * own)
                theirs *= theirs
                squares[:, tile.blocks] += tile.sums(theirs)
            finite(squares, updates)
            resembles = inner > self.rho * limit
            short = squares < (1.0 + self.epsilon) * limit
        accepted: Mask = resembles & short & np.isfinite(limit)
        return accepted
