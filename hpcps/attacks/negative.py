"""Turned round and enlarged."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from hpcps.attacks.base import Attack
from hpcps.layout import Vector


class Negative(Attack):
    """u becomes -scale * u."""

    kind: Literal["negative"] = "negative"
    scale: float = Field(6.0, gt=0, description="Factor on the turned update; ZenoPS: 6 synchronous, 2 asynchronous.")

    def corrupt(self, block: Vector, generator: np.random.Generator) -> None:
        """See `Attack.corrupt`."""
        with np.errstate(over="ignore"):
            np.multiply(block, -self.scale, out=block, dtype=np.float64, casting="same_kind")
