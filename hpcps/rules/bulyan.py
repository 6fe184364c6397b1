"""Bulyan."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np

from hpcps.numerics.blocks import Float64, tiles
from hpcps.numerics.gram import gram, squared_distances
from hpcps.numerics.sorting import ascending
from hpcps.numerics.updates import Updates
from hpcps.rules.base import Sees
from hpcps.rules.combined import Combined, Destination
from hpcps.rules.context import NOTHING, Context
from hpcps.rules.krum import scores
from hpcps.rules.meamed import mean_around_median
from hpcps.rules.ranks import nothing
from hpcps.rules.tolerance import Tolerant


class Bulyan(Tolerant):
    """Per coordinate, the mean of the n - 4 f values nearest to the median, of n - 2 f updates that Krum selects.

    Krum selects one update after another, each time among those that are left; max(1, left - f - 2) neighbours count.
    After El Mhamdi, Guerraoui and Rouault, "The hidden vulnerability of distributed learning in Byzantium", ICML 2018,
    which needs n >= 4 f + 3.
    """

    sees: ClassVar[Sees] = "vector"

    kind: Literal["bulyan"] = "bulyan"

    def unable(self, n: int) -> str:
        """See `Rule.unable`."""
        f = self.byzantine(n)
        return f"bulyan needs at least 4 f + 3 updates, and f = {f} of {n}" if n < 4 * f + 3 else ""

    def combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
        """See `Rule.combine`."""
        n, layout = len(updates), updates.layout
        if n == 0 or self.unable(n):
            return nothing(updates, context)
        f, whole = self.byzantine(n), np.zeros((n, n))
        for products in gram(updates, threads=context.threads):
            whole += products
        chosen = np.sort(self._selected(squared_distances(whole), n - 2 * f, f))
        destination = Destination(layout.size, context)
        for tile in tiles(layout, n):
            rows = ascending(updates.tile(tile.columns)[chosen])
            destination.put(tile.columns, mean_around_median(rows, n - 4 * f))
        accepted = np.zeros((n, len(layout.blocks)), np.bool_)
        accepted[chosen] = True
        return destination.combined(accepted)

    def _selected(self, distances: Float64, count: int, f: int) -> list[int]:
        """Return the updates that Krum selects, one after another."""
        left, selected = list(range(len(distances))), []
        for _ in range(count):
            neighbours = min(max(1, len(left) - f - 2), len(left) - 1)
            best = int(np.argmin(scores(distances[np.ix_(left, left)], neighbours)))
            selected.append(left.pop(best))
        return selected
