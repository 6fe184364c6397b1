"""A synchronous rule of your own; `experiment.toml` beside this file uses it."""

from typing import Literal

import numpy as np
from pydantic import Field

from hpcps.rules import Rule


class ClippedMean(Rule):
    """The mean of the updates, each scaled down to norm `radius` if it is longer."""

    kind: Literal["clipped_mean"] = "clipped_mean"
    radius: float = Field(1.0, gt=0, description="Largest norm of an update.")

    def aggregate(self, updates, context):
        """Combine the updates `[n, d]`."""
        norms = np.linalg.norm(updates, axis=1, keepdims=True)
        return np.mean(updates * (self.radius / np.maximum(norms, self.radius)), axis=0)
