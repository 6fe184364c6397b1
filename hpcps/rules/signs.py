"""Rules that look at the signs of the updates, per coordinate."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.numerics.destination import Combined
from hpcps.numerics.operations import mean_by_agreement, vote
from hpcps.numerics.updates import Updates
from hpcps.registry.config import LARGEST_FACTOR, MOST_ROLES
from hpcps.rules.base import Rule, Sees
from hpcps.rules.context import NOTHING, Context


class SignMajority(Rule):
    """Per coordinate, a step in the direction of the majority of the updates' signs; zero if they are even.

    After Bernstein, Zhao, Azizzadenesheli and Anandkumar, "signSGD with majority vote is communication efficient and
    fault tolerant", ICLR 2019.
    """

    sees: ClassVar[Sees] = "coordinate"
    checks: ClassVar[bool] = True

    kind: Literal["sign_majority"] = "sign_majority"
    step: float = Field(1e-3, gt=0, le=LARGEST_FACTOR, description="The size of the step in each coordinate.")

    def combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
        return vote(updates, float(np.float32(self.step)))


class Rlr(Rule):
    """Robust learning rate: the mean, with its sign flipped in coordinates where too few updates agree on the sign.

    The sign is flipped where the absolute value of the sum of the updates' signs is below the threshold. After Ozdayi,
    Kantarcioglu and Gel, "Defending against backdoors in federated learning with robust learning rate", AAAI 2021.
    """

    sees: ClassVar[Sees] = "coordinate"
    checks: ClassVar[bool] = True

    kind: Literal["rlr"] = "rlr"
    threshold: int = Field(4, ge=0, le=MOST_ROLES, description="The smallest absolute sum of signs that is trusted.")

    def combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
        return mean_by_agreement(updates, float(self.threshold))
