"""Naive asynchronous training: every update is applied."""

from __future__ import annotations

from typing import ClassVar, Literal

from hpcps.numerics.blocks import Float64
from hpcps.numerics.updates import Updates
from hpcps.rules.asynchronous import Decision, ScalingRule
from hpcps.rules.base import Sees
from hpcps.rules.context import AsyncContext


class NaiveAsync(ScalingRule):
    """Adds every update multiplied by alpha, without any check and with any staleness."""

    sees: ClassVar[Sees] = "coordinate"

    kind: Literal["naive_async"] = "naive_async"

    def factors(self, update: Updates, context: AsyncContext) -> tuple[Decision, Float64 | None]:
        return Decision.accept(context.sent), None
