"""The mean."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from hpcps.numerics.blocks import mean, tiles
from hpcps.numerics.kernels import worthwhile
from hpcps.numerics.updates import Updates
from hpcps.numerics.weighted import weighted_sum
from hpcps.rules import on_device
from hpcps.rules.base import Rule, Sees
from hpcps.rules.combined import Combined, Destination
from hpcps.rules.context import NOTHING, Context
from hpcps.rules.on_device import DeviceKernel
from hpcps.rules.screening import finite


class Average(Rule):
    """The mean of the n updates; another name for `mean`, and the name in records."""

    sees: ClassVar[Sees] = "coordinate"
    checks: ClassVar[bool] = True
    fuses: ClassVar[bool] = True

    kind: Literal["average"] = "average"

    def device_kernel(self, n: int) -> DeviceKernel | None:
        """See `Rule.device_kernel`."""
        return on_device.average

    def combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
        """See `Rule.combine`; the sums are float64, in the order of the updates."""
        n, layout = len(updates), updates.layout
        accepted = np.ones((n, len(layout.blocks)), dtype=np.bool_)
        if updates.lazy and n:
            shares = np.full(accepted.shape, 1 / n)
            return Combined(*weighted_sum(updates, shares, context.base, context.out, context.threads), accepted)
        if worthwhile(updates):
            from hpcps.numerics.kernels import engine

            return Combined(*engine.average(updates, context.base, context.out, context.threads), accepted)
        destination = Destination(layout.size, context)
        for tile in tiles(layout, n) if n else ():
            # A sum of finite float32 values cannot overflow float64: it is finite if and only if all of them are.
            destination.put(tile.columns, finite(mean(updates.tile(tile.columns), n), updates))
        if not n:
            destination.zero()
        return destination.combined(accepted)


class Mean(Average):
    """The mean of the n updates; runs with `average` are the same runs."""

    kind: Literal["mean"] = "mean"  # type: ignore[assignment]

    def same_results(self) -> Average:
        """See `Config.same_results`."""
        return Average(before=self.before, skipped=self.skipped)
