"""Bulyan."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar, Literal

import numpy as np

from hpcps.numerics.blocks import Float64
from hpcps.numerics.destination import Combined
from hpcps.numerics.gram import squared_distances, whole_gram
from hpcps.numerics.operations import mean_around_median, nothing
from hpcps.numerics.updates import Updates
from hpcps.rules.base import Sees
from hpcps.rules.context import NOTHING, Context
from hpcps.rules.krum import scores
from hpcps.rules.median import ranks_of_median
from hpcps.rules.tolerance import Tolerant
from hpcps.rules.weighted import finite_products


class Bulyan(Tolerant):
    """Per coordinate, the mean of the n - 4 f values nearest to the median, of n - 2 f updates that Krum selects.

    Krum selects one update after another, each time among those that are left; max(1, left - f - 2) neighbours count.
    After El Mhamdi, Guerraoui and Rouault, "The hidden vulnerability of distributed learning in Byzantium", ICML 2018,
    which needs n >= 4 f + 3.
    """

    sees: ClassVar[Sees] = "vector"
    checks: ClassVar[bool] = True
    bound: ClassVar[tuple[int, int]] = (4, 3)

    kind: Literal["bulyan"] = "bulyan"

    def unable(self, n: int) -> str:
        return self.below_bound(n)

    def combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
        n = len(updates)
        if n == 0 or self.unable(n):
            return nothing(updates)
        f, products = self.byzantine(n), finite_products(whole_gram(updates), updates)
        chosen = np.sort(self._selected(squared_distances(products), n - 2 * f, f))
        found = mean_around_median(updates.select(chosen), ranks_of_median(len(chosen), "mean"), n - 4 * f)
        accepted = np.zeros(updates.used.shape, np.bool_)
        accepted[chosen] = found.accepted
        return replace(found, accepted=accepted)

    def _selected(self, distances: Float64, count: int, f: int) -> list[int]:
        """Return the updates that Krum selects, one after another."""
        left, selected = list(range(len(distances))), []
        for _ in range(count):
            neighbours = min(max(1, len(left) - f - 2), len(left) - 1)
            best = int(np.argmin(scores(distances[np.ix_(left, left)], neighbours)))
            selected.append(left.pop(best))
        return selected
