"""DC-ASGD: compensates the delay of an update with an approximation of the Hessian."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.numerics.blocks import Float64
from hpcps.numerics.layout import Vector
from hpcps.numerics.updates import Updates
from hpcps.registry.config import MOST
from hpcps.rules.asynchronous import Backup, Decision, ScalingRule
from hpcps.rules.base import Sees
from hpcps.rules.context import AsyncContext

_SMALLEST = float(np.finfo(np.float32).tiny)


class DcAsgd(ScalingRule):
    """Adds every update multiplied by alpha, corrected for the change of the model since its gradient was computed.

    A worker sends u = -eta g, where g is the gradient of one step of plain SGD and eta its learning rate. The servers
    add alpha (u - (lambda / eta) u u (w - b)) to the model w, element by element, which is one step of
    w - alpha eta (g + lambda g g (w - b)). `compensation` is lambda, and `backup` selects b. The gradient includes the
    weight decay. After Zheng, Meng, Wang, Chen, Yu, Ma and Liu, "Asynchronous stochastic gradient descent with delay
    compensation", ICML 2017.
    """

    sees: ClassVar[Sees] = "coordinate"

    kind: Literal["dc_asgd"] = "dc_asgd"
    compensation: float = Field(
        0.04, ge=0, le=MOST, description="Factor of the compensation, lambda in the paper; 0: none."
    )
    backup: Backup = Field(
        "pulled",
        description="Weights that the model is compared with: `pulled` (the paper): those that the worker of the "
        "update pulled last; `previous` (some published implementations): those before the last update of the block, "
        "whichever worker sent it.",
    )

    @property
    def compares_with(self) -> Backup | None:
        return self.backup

    def factors(self, update: Updates, context: AsyncContext) -> tuple[Decision, Float64 | None]:
        return Decision.accept(context.sent), None

    def compensate(self, update: Vector, drift: Vector, rate: float) -> Vector:
        if rate < _SMALLEST:  # the update is itself zero
            return update
        change: Vector = update / np.float32(rate)
        change *= np.float32(self.compensation)
        change *= update
        change *= drift
        return np.subtract(update, change, out=change)
