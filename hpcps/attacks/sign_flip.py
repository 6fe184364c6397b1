"""The update with the opposite sign."""

from __future__ import annotations

from typing import Literal

import numpy as np

from hpcps.attacks.base import Attack
from hpcps.attacks.context import AttackContext
from hpcps.numerics.layout import Vector


class SignFlip(Attack):
    """u becomes -u: the attacker sends the opposite of its own update.

    Source: bit-flipping in S. P. Karimireddy, L. He, M. Jaggi, "Byzantine-robust learning on heterogeneous datasets via
    bucketing", ICLR 2022. Libraries that let it send the opposite of the mean of the honest updates need to know these.
    """

    kind: Literal["sign_flip"] = "sign_flip"

    def corrupt(self, block: Vector, context: AttackContext) -> None:
        np.negative(block, out=block)
