"""Noise of a fixed size."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.attacks.base import Attack, Need
from hpcps.attacks.context import AttackContext
from hpcps.numerics.layout import Vector
from hpcps.registry.config import LARGEST_FACTOR


class Random(Attack):
    """u becomes noise from N(0, scale^2), elementwise."""

    needs: ClassVar[frozenset[Need]] = frozenset()

    kind: Literal["random"] = "random"
    scale: float = Field(
        1.0, gt=0, le=LARGEST_FACTOR, description="Standard deviation of the noise, in parameter units; 1 in ZenoPS."
    )

    def corrupt(self, block: Vector, context: AttackContext) -> None:
        noise = context.random.standard_normal(block.size, dtype=np.float32)
        with np.errstate(over="ignore"):
            np.multiply(noise, self.scale, out=block, dtype=np.float64, casting="same_kind")
