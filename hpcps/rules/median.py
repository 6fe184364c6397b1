"""The median."""

from __future__ import annotations

from typing import ClassVar, Literal

from hpcps.numerics.updates import Updates
from hpcps.rules import on_device
from hpcps.rules.base import Rule, Sees
from hpcps.rules.combined import Combined
from hpcps.rules.context import NOTHING, Context
from hpcps.rules.on_device import DeviceKernel
from hpcps.rules.ranks import mean_of_ranks, nothing


class Median(Rule):
    """Per coordinate, the median of the n updates; the mean of the two middle values if n is even.

    After Yin, Chen, Ramchandran and Bartlett, "Byzantine-robust distributed learning: towards optimal statistical
    rates", ICML 2018.
    """

    sees: ClassVar[Sees] = "coordinate"
    checks: ClassVar[bool] = True

    kind: Literal["median"] = "median"

    def device_kernel(self, n: int) -> DeviceKernel | None:
        """See `Rule.device_kernel`."""
        return on_device.mean_of_ranks(n, (n - 1) // 2, n // 2 + 1)

    def combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
        """See `Rule.combine`."""
        n = len(updates)
        if n == 0:
            return nothing(updates, context)
        return mean_of_ranks(updates, (n - 1) // 2, n // 2 + 1, context)
