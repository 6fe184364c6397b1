"""An asynchronous rule of your own: `plugins = ["my_async_rule.py"]` and `validation.rule = { kind = "clipped" }`."""

from typing import Literal

import numpy as np
from pydantic import Field

from hpcps.rules import AsyncRule, Decision


class Clipped(AsyncRule):
    """Every update is applied; one that is longer than `radius` is scaled down to that."""

    kind: Literal["clipped"] = "clipped"
    radius: float = Field(1.0, gt=0, description="Largest norm of an update.")

    def decide(self, update, context):
        """Scale the update `[d]`."""
        norm = np.sqrt(np.square(update, dtype=np.float64).sum())
        update *= np.float32(self.radius / max(norm, self.radius))
        return Decision.accept(context.sent)
