"""The mean."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from hpcps.numerics.blocks import mean, tiles
from hpcps.numerics.kernels import worthwhile
from hpcps.numerics.updates import Updates
from hpcps.rules.base import Rule, Sees
from hpcps.rules.combined import Combined, Destination
from hpcps.rules.context import NOTHING, Context
from hpcps.rules.screening import finite


class Average(Rule):
    """The mean of the n updates."""

    sees: ClassVar[Sees] = "coordinate"
    checks: ClassVar[bool] = True

    kind: Literal["average"] = "average"

    def combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
        """See `Rule.combine`; the sums are float64, in the order of the updates."""
        n, layout = len(updates), updates.layout
        accepted = np.ones((n, len(layout.blocks)), dtype=np.bool_)
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
