"""The update, negated and scaled."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from hpcps.attacks.base import Attack
from hpcps.attacks.context import AttackContext
from hpcps.numerics.layout import Vector
from hpcps.registry.config import LARGEST_FACTOR


class Negative(Attack):
    """u becomes -scale * u."""

    kind: Literal["negative"] = "negative"
    scale: float = Field(
        6.0,
        gt=0,
        le=LARGEST_FACTOR,
        description="Factor on the negated update; ZenoPS: 6 synchronous, 2 asynchronous.",
    )

    def corrupt(self, block: Vector, context: AttackContext) -> None:
        with np.errstate(over="ignore"):
            np.multiply(block, -self.scale, out=block, dtype=np.float64, casting="same_kind")
