"""Noise in proportion to the update."""

from __future__ import annotations

from math import sqrt
from typing import Literal

import numpy as np
from pydantic import Field

from hpcps.attacks.base import Attack
from hpcps.attacks.context import AttackContext
from hpcps.numerics.layout import Vector
from hpcps.registry.config import LARGEST_FACTOR


class RandomScale(Attack):
    """u becomes scale * |u| * g / |g|, g ~ N(0, 1) elementwise: a random direction and scale times the norm of u."""

    kind: Literal["randomscale"] = "randomscale"
    scale: float = Field(
        8.0, gt=0, le=LARGEST_FACTOR, description="Norm of the noise, in units of the block's norm; 8 in ZenoPS."
    )

    def corrupt(self, block: Vector, context: AttackContext) -> None:
        """See `Attack.corrupt`; a zero block stays zero."""
        noise_like(block, block, self.scale, context.random)


def noise_like(example: Vector, block: Vector, scale: float, random: np.random.Generator) -> None:
    """Fill a block with scale * |example| * g / |g|, g ~ N(0, 1) elementwise."""
    noise = random.standard_normal(block.size, dtype=np.float32)
    length = _norm(noise)
    if length == 0.0:  # the block has no elements, or all of the noise is zero
        block[:] = 0.0
        return
    with np.errstate(over="ignore", invalid="ignore"):
        factor = scale * (_norm(example) / length)
        np.multiply(noise, factor, out=block, dtype=np.float64, casting="same_kind")


def _norm(values: Vector) -> float:
    """Return the Euclidean norm; squares of float32 are exact in float64, and their sum cannot overflow."""
    return sqrt(np.square(values, dtype=np.float64).sum())
