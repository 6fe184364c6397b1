"""Naive asynchronous training: every update is applied."""

from __future__ import annotations

from typing import ClassVar, Literal

from hpcps.numerics.layout import Vector
from hpcps.rules.asynchronous import AsyncRule, Decision
from hpcps.rules.base import Sees
from hpcps.rules.context import AsyncContext


class NaiveAsync(AsyncRule):
    """Adds every update multiplied by alpha, without any check and with any staleness."""

    sees: ClassVar[Sees] = "coordinate"

    kind: Literal["naive_async"] = "naive_async"

    def decide(self, update: Vector, context: AsyncContext) -> Decision:
        """See `AsyncRule.decide`."""
        return Decision.accept(context.sent)
