"""Phocas: the mean of the values nearest to the trimmed mean."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.numerics.blocks import Float64, mean, tiles
from hpcps.numerics.kernels import worthwhile
from hpcps.numerics.layout import Vector
from hpcps.numerics.sorting import ascending
from hpcps.numerics.updates import Updates
from hpcps.rules import on_device
from hpcps.rules.base import Sees
from hpcps.rules.combined import Combined, Destination
from hpcps.rules.context import NOTHING, Context
from hpcps.rules.on_device import DeviceKernel
from hpcps.rules.ranks import mean_of_ranks, nothing
from hpcps.rules.screening import finite
from hpcps.rules.share import DEFAULT, count
from hpcps.rules.trimming import Trimming


class Phocas(Trimming):
    """Per coordinate, the mean of the n - b values nearest to the b-trimmed mean.

    b = f if f is given; too few updates are n <= 2 f. Otherwise b = int(max(1, trim * n)), and too few are n <= 2. The
    result of too few is zero, and no update is accepted. Of two values at the same distance from the trimmed mean, the
    smaller is kept. After Xie, Koyejo and Gupta, "Phocas: dimensional Byzantine-resilient stochastic gradient descent",
    arXiv 1805.09682.
    """

    sees: ClassVar[Sees] = "coordinate"
    checks: ClassVar[bool] = True

    kind: Literal["phocas"] = "phocas"
    trim: float = Field(
        DEFAULT,
        ge=0,
        lt=0.5,
        description="Share of the updates dropped, 0 to 0.5; at least one is dropped; 0.2 in ZenoPS.",
    )

    def trimmed(self, n: int) -> int:
        """Return b, the number of updates dropped, for enough updates."""
        return max(1, count(self.trim, n)) if self.f is None else count(self.f, n)

    def device_kernel(self, n: int) -> DeviceKernel | None:
        """See `Rule.device_kernel`."""
        if self.too_few(n):
            return on_device.nothing
        b = self.trimmed(n)
        return on_device.mean_of_ranks(n, b, n - b, nearest=True)

    def combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
        """See `Rule.combine`."""
        n, layout = len(updates), updates.layout
        if self.too_few(n):
            return nothing(updates, context)
        if (b := self.trimmed(n)) == 0:
            return mean_of_ranks(updates, 0, n, context)
        accepted = np.ones((n, len(layout.blocks)), np.bool_)
        if worthwhile(updates):
            from hpcps.numerics.kernels import engine

            return Combined(
                *engine.ordered(updates, b, n - b, context.base, context.out, context.threads, nearest=True), accepted
            )
        destination = Destination(layout.size, context)
        for tile in tiles(layout, n):
            values = ascending(finite(updates.tile(tile.columns), updates))
            destination.put(tile.columns, _nearest_mean(values, b))
        return destination.combined(accepted)


def _nearest_mean(rows: list[Vector], b: int) -> Float64:
    """Return the mean of the n - b of n sorted values `[t]` nearest to their b-trimmed mean.

    The nearest values are contiguous in sorted order: a window [k, n - b + k). Moving the window up by one replaces
    value k by value n - b + k. This brings the window nearer as long as value k is the farther of the two, and once it
    is not, it never is again. So each of these b pairs is decided independently, and the values between them are in
    every window.
    """
    keep = len(rows) - b
    centre = mean(rows[b:keep], keep - b)
    pairs = zip(rows[:b], rows[keep:], strict=True)
    ends = [np.where(centre - low > high - centre, high, low) for low, high in pairs]
    return mean(rows[b:keep] + ends, keep)
