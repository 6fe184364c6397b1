"""The median."""

from __future__ import annotations

from typing import ClassVar, Literal

from hpcps.layout import Vector
from hpcps.rules.base import Rule
from hpcps.rules.combined import Combined
from hpcps.rules.ranks import mean_of_ranks, nothing
from hpcps.updates import Updates


class Median(Rule):
    """Per coordinate, the median of the n updates; the mean of the two in the middle if n is even.

    After Yin, Chen, Ramchandran and Bartlett, "Byzantine-robust distributed learning: towards optimal statistical
    rates", ICML 2018.
    """

    checks: ClassVar[bool] = True

    kind: Literal["median"] = "median"

    def combine(
        self,
        updates: Updates,
        reference: Vector | None = None,
        *,
        base: Vector | None = None,
        out: Vector | None = None,
        threads: int = 1,
    ) -> Combined:
        """See `Rule.combine`."""
        n = len(updates)
        if n == 0:
            return nothing(updates, base, out)
        return mean_of_ranks(updates, (n - 1) // 2, n // 2 + 1, base, out, threads)
