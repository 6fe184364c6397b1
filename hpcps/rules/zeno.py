"""Zeno, as ZenoPS uses it: compares updates with the validator's own update."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.numerics.blocks import tiles
from hpcps.numerics.kernels import worthwhile
from hpcps.numerics.layout import Mask
from hpcps.numerics.products import Products, products
from hpcps.numerics.updates import Updates
from hpcps.registry.config import LARGEST_FACTOR
from hpcps.rules import on_device
from hpcps.rules.base import Need, Rule, Sees
from hpcps.rules.combined import Combined, Destination
from hpcps.rules.context import NOTHING, Context
from hpcps.rules.on_device import DeviceKernel
from hpcps.rules.screening import finite


class Zeno(Rule):
    """Per block, the mean of the updates that are similar to the validator's own update v; zero if none is.

    An update u is accepted iff <u, v> > rho |v|^2 and |u|^2 < (1 + epsilon) |v|^2. So a zero update is accepted iff
    rho < 0, and no update is accepted if v is zero or not finite. After Xie, Koyejo and Gupta, "ZenoPS: a distributed
    learning system integrating communication efficiency and security", Algorithms 15(7):233, 2022, whose artifact
    calls our rho `zeno-eta` and our epsilon `rho`.
    """

    sees: ClassVar[Sees] = "block"
    needs: ClassVar[frozenset[Need]] = frozenset({"reference"})
    checks: ClassVar[bool] = True

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

    def device_kernel(self, n: int) -> DeviceKernel | None:
        """See `Rule.device_kernel`."""
        return on_device.mean_of_similar(self.rho, 1.0 + self.epsilon)

    def combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
        """See `Rule.combine`; sums are float64, in the order of the updates."""
        reference = context.reference
        assert reference is not None, "zeno needs the validator's own update"
        layout = updates.layout
        if worthwhile(updates):
            from hpcps.numerics.kernels import filtering

            return Combined(
                *filtering.mean_of_accepted(
                    updates,
                    reference,
                    lambda sums: self._accepts(sums, updates),
                    context.base,
                    context.out,
                    context.threads,
                    zeros=self.rho < 0,
                )
            )
        with np.errstate(invalid="ignore", over="ignore"):  # v may not be finite after the model has diverged
            accepted = self._accepts(products(updates, reference), updates)
        destination = Destination(layout.size, context)
        weights = accepted.astype(np.float64)
        counts = np.maximum(weights.sum(axis=0), 1.0)
        for tile in tiles(layout, len(updates)):
            total = np.zeros(tile.columns.stop - tile.columns.start)
            for weight, update in zip(tile.spread(weights), updates.tile(tile.columns), strict=True):
                total += weight * update
            destination.put(tile.columns, total / tile.spread(counts))
        return destination.combined(accepted)

    def _accepts(self, sums: Products, updates: Updates) -> Mask:
        """Return the (update, block) pairs that are accepted: `[n, B]`; u = v meets either threshold exactly."""
        finite(sums.squares, updates)
        with np.errstate(invalid="ignore", over="ignore"):
            resembles = sums.inner > self.rho * sums.own
            short = sums.squares < (1.0 + self.epsilon) * sums.own
        accepted: Mask = resembles & short & np.isfinite(sums.own)
        return accepted
