"""The update without some of its coordinates."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from hpcps.attacks.base import Attack
from hpcps.attacks.context import AttackContext
from hpcps.numerics.layout import Vector


class Drop(Attack):
    """Each element of u becomes 0 with probability `share`, independently of the others.

    Source: partial drop in R. Guerraoui et al., "Garfield: system support for Byzantine machine learning", DSN 2021,
    with share 0.3; its code discards the result, and so sends the honest update.
    """

    kind: Literal["drop"] = "drop"
    share: float = Field(0.3, ge=0, le=1, description="Probability that an element becomes 0.")

    def corrupt(self, block: Vector, context: AttackContext) -> None:
        block[context.random.random(block.size, dtype=np.float32) < self.share] = 0.0
