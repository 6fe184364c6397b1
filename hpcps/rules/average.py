"""The mean."""

from __future__ import annotations

from typing import ClassVar, Literal

from hpcps.numerics.destination import Combined
from hpcps.numerics.operations import average
from hpcps.numerics.updates import Updates
from hpcps.rules.base import Rule, Sees
from hpcps.rules.context import NOTHING, Context


class Average(Rule):
    """The mean of the n updates; another name for `mean`, and the name in records."""

    sees: ClassVar[Sees] = "coordinate"
    checks: ClassVar[bool] = True

    kind: Literal["average"] = "average"

    def combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
        return average(updates)


class Mean(Average):
    """The mean of the n updates; runs with `average` are the same runs."""

    kind: Literal["mean"] = "mean"  # type: ignore[assignment]

    def same_results(self) -> Average:
        return Average(before=self.before, skipped=self.skipped)
