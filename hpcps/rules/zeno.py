"""Zeno, as ZenoPS uses it: updates are compared with the validator's own."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.blocks import tiles
from hpcps.kernels import worthwhile
from hpcps.layout import Mask, Vector
from hpcps.rules.base import Rule
from hpcps.rules.combined import Combined, Destination
from hpcps.rules.products import Products, products
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
        threads: int = 1,
    ) -> Combined:
        """See `Rule.combine`; sums are float64, in the order of the updates."""
        assert reference is not None, "zeno compares with the validator's own update"
        layout = updates.layout
        if worthwhile(updates):
            from hpcps.kernels import judging

            return Combined(
                *judging.mean_of_accepted(
                    updates,
                    reference,
                    lambda sums: self._accepts(sums, updates),
                    base,
                    out,
                    threads,
                    zeros=self.rho < 0,
                )
            )
        with np.errstate(invalid="ignore", over="ignore"):  # v may be anything once the model has diverged
            accepted = self._accepts(products(updates, reference), updates)
        destination = Destination(layout.size, base, out)
        weights = accepted.astype(np.float64)
        counts = np.maximum(weights.sum(axis=0), 1.0)
        for tile in tiles(layout, len(updates)):
            total = np.zeros(tile.columns.stop - tile.columns.start)
            for weight, update in zip(tile.spread(weights), updates.tile(tile.columns), strict=True):
                total += weight * update
            destination.put(tile.columns, total / tile.spread(counts))
        return destination.combined(accepted)

    def _accepts(self, sums: Products, updates: Updates) -> Mask:
        """Tell which (update, block) pairs are accepted: `[n, B]`; u = v meets either threshold exactly."""
        finite(sums.squares, updates)
        with np.errstate(invalid="ignore", over="ignore"):
            resembles = sums.inner > self.rho * sums.own
            short = sums.squares < (1.0 + self.epsilon) * sums.own
        accepted: Mask = resembles & short & np.isfinite(sums.own)
        return accepted
