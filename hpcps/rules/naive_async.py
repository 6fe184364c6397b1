"""Naive asynchronous training: every update is applied."""

from __future__ import annotations

from typing import ClassVar, Literal

from hpcps.numerics.layout import Vector
from hpcps.rules import on_device
from hpcps.rules.asynchronous import AsyncRule, Decision
from hpcps.rules.base import Sees
from hpcps.rules.context import AsyncContext
from hpcps.rules.on_device import DeviceDecider


class NaiveAsync(AsyncRule):
    """Adds every update multiplied by alpha, without any check and with any staleness."""

    sees: ClassVar[Sees] = "coordinate"

    kind: Literal["naive_async"] = "naive_async"

    def device_kernel(self) -> DeviceDecider | None:
        """See `AsyncRule.device_kernel`."""
        return on_device.accept

    def decide(self, update: Vector, context: AsyncContext) -> Decision:
        """See `AsyncRule.decide`."""
        return Decision.accept(context.sent)
