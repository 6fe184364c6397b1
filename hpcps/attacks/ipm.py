"""Inner product manipulation."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from hpcps.attacks.context import AdversaryContext
from hpcps.attacks.omniscient import Omniscient
from hpcps.numerics.layout import Vector
from hpcps.numerics.mixture import rounded
from hpcps.registry.config import LARGEST_FACTOR


class Ipm(Omniscient):
    """Inner product manipulation: every Byzantine worker sends -epsilon * m, m the mean of the honest updates.

    Xie, Koyejo and Gupta, "Fall of Empires: Breaking Byzantine-tolerant SGD by Inner Product Manipulation", UAI 2019,
    section 4: a small epsilon passes rules that compare distances, and a large one reverses the mean.
    """

    kind: Literal["ipm"] = "ipm"
    epsilon: float = Field(
        0.1,
        gt=0,
        le=LARGEST_FACTOR,
        description="Factor on the negated mean; 0.1 and 0.5 are common, and 100 for krum.",
    )

    def craft(self, honest: Vector, own: Vector, context: AdversaryContext) -> Vector:
        return rounded(-self.epsilon * honest.mean(axis=0, dtype=np.float64))
