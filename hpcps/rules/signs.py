"""Rules that look at the signs of the updates, per coordinate."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.numerics.blocks import mean, tiles
from hpcps.numerics.kernels import worthwhile
from hpcps.numerics.updates import Updates
from hpcps.registry.config import LARGEST_FACTOR, MOST_ROLES
from hpcps.rules.base import Rule, Sees
from hpcps.rules.combined import Combined, Destination
from hpcps.rules.context import NOTHING, Context
from hpcps.rules.screening import finite


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
        """See `Rule.combine`."""
        n, layout, step = len(updates), updates.layout, float(np.float32(self.step))
        accepted = np.ones((n, len(layout.blocks)), np.bool_)
        if worthwhile(updates) and step:
            from hpcps.numerics.kernels import engine

            return Combined(*engine.votes(updates, step, 0.0, context.base, context.out, context.threads), accepted)
        destination = Destination(layout.size, context)
        for tile in tiles(layout, max(n, 1)):
            votes = np.sign(finite(updates.tile(tile.columns), updates)).sum(axis=0)
            destination.put(tile.columns, np.sign(votes) * step)
        return destination.combined(accepted)


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
        """See `Rule.combine`."""
        n, layout = len(updates), updates.layout
        accepted = np.ones((n, len(layout.blocks)), np.bool_)
        if worthwhile(updates):
            from hpcps.numerics.kernels import engine

            limit = float(self.threshold)
            return Combined(*engine.votes(updates, 0.0, limit, context.base, context.out, context.threads), accepted)
        destination = Destination(layout.size, context)
        if not n:
            destination.zero()
        for tile in tiles(layout, n) if n else ():
            rows = finite(updates.tile(tile.columns), updates)
            agree = np.abs(np.sign(rows).sum(axis=0)) >= self.threshold
            destination.put(tile.columns, np.where(agree, 1.0, -1.0) * mean(rows, n))
        return destination.combined(accepted)
