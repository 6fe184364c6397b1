"""The mean."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from hpcps.blocks import mean, tiles
from hpcps.kernels import worthwhile
from hpcps.layout import Vector
from hpcps.rules.base import Rule
from hpcps.rules.combined import Combined, Destination
from hpcps.rules.screening import finite
from hpcps.updates import Updates


class Average(Rule):
    """The mean of the n updates."""

    checks: ClassVar[bool] = True

    kind: Literal["average"] = "average"

    def combine(
        self,
        updates: Updates,
        reference: Vector | None = None,
        *,
        base: Vector | None = None,
        out: Vector | None = None,
        threads: int = 1,
    ) -> Combined:
        """See `Rule.combine`; summed in float64, in the order of the updates."""
        n, layout = len(updates), updates.layout
        accepted = np.ones((n, len(layout.blocks)), dtype=np.bool_)
        if worthwhile(updates):
            from hpcps.kernels import engine

            return Combined(*engine.average(updates, base, out, threads), accepted)
        destination = Destination(layout.size, base, out)
        for tile in tiles(layout, n) if n else ():
            # A sum of finite float32 values cannot overflow float64: it is finite if and only if all of them are.
            destination.put(tile.columns, finite(mean(updates.tile(tile.columns), n), updates))
        if not n:
            destination.zero()
        return destination.combined(accepted)
