"""The mean."""

from __future__ import annotations

from typing import Literal

import numpy as np

from hpcps.blocks import mean, tiles
from hpcps.layout import Layout, Vector
from hpcps.rules.base import Combined, Rule


class Average(Rule):
    """The mean of the n updates."""

    kind: Literal["average"] = "average"

    def combine(self, updates: Vector, layout: Layout, reference: Vector | None = None) -> Combined:
        """See `Rule.combine`; summed in float64, in the order of the updates."""
        n = len(updates)
        combined = np.zeros(layout.size, dtype=np.float32)
        if n > 0:
            for tile in tiles(layout, n):
                combined[tile.columns] = mean(updates[:, tile.columns], n)
        return Combined(combined, np.ones((n, len(layout.blocks)), dtype=np.bool_))
