"""Noise of a fixed size."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from hpcps.attacks.base import Attack
from hpcps.layout import Vector


class Random(Attack):
    """u becomes noise from N(0, scale^2), elementwise."""

    kind: Literal["random"] = "random"
    scale: float = Field(1.0, gt=0, description="Standard deviation of the noise, in parameter units; 1 in ZenoPS.")

    def corrupt(self, block: Vector, generator: np.random.Generator) -> None:
        """See `Attack.corrupt`."""
        noise = generator.standard_normal(block.size, dtype=np.float32)
        with np.errstate(over="ignore"):
            np.multiply(noise, self.scale, out=block, dtype=np.float64, casting="same_kind")
