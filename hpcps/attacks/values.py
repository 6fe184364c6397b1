"""Attacks on the values of the own update: constants, the opposite sign, missing coordinates, noise."""

from __future__ import annotations

from math import inf, nan, sqrt
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.attacks.base import Attack, AttackContext, Need
from hpcps.numerics.layout import Vector
from hpcps.registry.config import LARGEST_FACTOR


class ConstantAttack(Attack):
    """Every element of u becomes `value`."""

    needs: ClassVar[frozenset[Need]] = frozenset()
    value: ClassVar[float]

    def corrupt(self, block: Vector, context: AttackContext) -> None:
        block[:] = self.value


class Zero(ConstantAttack):
    """u becomes 0: the block counts as sent, and pulls what is combined to zero.

    A block that is skipped is zero too, but rules and records know that it was not sent.
    """

    kind: Literal["zero"] = "zero"
    value: ClassVar[float] = 0.0


class Nan(ConstantAttack):
    """Every element of u becomes NaN.

    No value of such a block reaches a model: the combiner rejects the block and treats it as skipped.
    """

    kind: Literal["nan"] = "nan"
    value: ClassVar[float] = nan


class Infinite(ConstantAttack):
    """Every element of u becomes +infinity, as in ByzFL's `Inf`.

    No value of such a block reaches a model: the combiner rejects the block and treats it as skipped.
    """

    kind: Literal["infinite"] = "infinite"
    value: ClassVar[float] = inf


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


class SignFlip(Attack):
    """u becomes -u: the attacker sends the opposite of its own update.

    Source: bit-flipping in S. P. Karimireddy, L. He, M. Jaggi, "Byzantine-robust learning on heterogeneous datasets via
    bucketing", ICLR 2022. Libraries that let it send the opposite of the mean of the honest updates need to know these.
    """

    kind: Literal["sign_flip"] = "sign_flip"

    def corrupt(self, block: Vector, context: AttackContext) -> None:
        np.negative(block, out=block)


class Drop(Attack):
    """Each element of u becomes 0 with probability `share`, independently of the others.

    Source: partial drop in R. Guerraoui et al., "Garfield: system support for Byzantine machine learning", DSN 2021,
    with share 0.3; its code discards the result, and so sends the honest update.
    """

    kind: Literal["drop"] = "drop"
    share: float = Field(0.3, ge=0, le=1, description="Probability that an element becomes 0.")

    def corrupt(self, block: Vector, context: AttackContext) -> None:
        block[context.random.random(block.size, dtype=np.float32) < self.share] = 0.0


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


class RandomScale(Attack):
    """u becomes scale * |u| * g / |g|, g ~ N(0, 1) elementwise: a random direction and scale times the norm of u."""

    kind: Literal["randomscale"] = "randomscale"
    scale: float = Field(
        8.0, gt=0, le=LARGEST_FACTOR, description="Norm of the noise, in units of the block's norm; 8 in ZenoPS."
    )

    def corrupt(self, block: Vector, context: AttackContext) -> None:
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
        noise = context.random.standard_normal(block.size, dtype=np.float32).astype(np.float64)
        with np.errstate(over="ignore", invalid="ignore"):
            if self.around == "zero" or not block.size:
                noise *= self.scale
            else:
                noise *= self.scale * float(np.std(block, dtype=np.float64))
                noise += block
            block[:] = noise
