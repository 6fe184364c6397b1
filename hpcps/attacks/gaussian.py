"""Gaussian noise in place of the update, or on top of it."""

from __future__ import annotations

from typing import Literal

import numpy as np
from pydantic import Field

from hpcps.attacks.base import Attack
from hpcps.attacks.context import AttackContext
from hpcps.numerics.layout import Vector
from hpcps.registry.config import LARGEST_FACTOR


class Gaussian(Attack):
    """u becomes scale * g (around zero), or u + scale * s * g (around its own), g ~ N(0, 1) elementwise.

    s is the standard deviation of the elements of the block u; the divisor of their variance is their number. Around
    zero it is the attack `random`; the source is C. Xie, O. Koyejo, I. Gupta, "Generalized Byzantine-tolerant SGD",
    arXiv:1802.10116, with scale 200. Around its own it is the attack of the CRYPTO-KU FL-Byzantine-Library, which takes
    s over the whole update and adds the noise in every local step.
    """

    kind: Literal["gaussian"] = "gaussian"
    around: Literal["zero", "own"] = Field(
        "zero", description="Mean of the noise: `zero`, or the attacker's `own` update."
    )
    scale: float = Field(
        1.0,
        gt=0,
        le=LARGEST_FACTOR,
        description="Standard deviation of the noise; in parameter units around zero, in units of the standard "
        "deviation of the block around its own.",
    )

    def corrupt(self, block: Vector, context: AttackContext) -> None:
        """See `Attack.corrupt`; a constant block stays what it is, if the noise is around it."""
        noise = context.random.standard_normal(block.size, dtype=np.float32).astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            if self.around == "zero" or not block.size:
                noise *= self.scale
            else:
                noise *= self.scale * float(np.std(block, dtype=np.float64))
                noise += block
            block[:] = noise
