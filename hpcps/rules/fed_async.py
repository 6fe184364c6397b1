"""FedAsync: the staler an update, the less it counts."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hpcps.config import Config
from hpcps.layout import Layout, Mask, Vector
from hpcps.rules.base import AsyncRule, Judged


class Constant(Config):
    """s(t) = 1."""

    kind: Literal["constant"] = "constant"

    def weight(self, staleness: int) -> float:
        """Return s(t)."""
        return 1.0


class Polynomial(Config):
    """s(t) = (1 + t)^-a."""

    kind: Literal["polynomial"] = "polynomial"
    a: float = Field(0.5, ge=0, description="Exponent; 0.5 in FedAsync.")

    def weight(self, staleness: int) -> float:
        """Return s(t)."""
        return float((1.0 + staleness) ** -self.a)


class Hinge(Config):
    """s(t) = 1 up to b, then 1 / (a (t - b) + 1)."""

    kind: Literal["hinge"] = "hinge"
    a: float = Field(10.0, ge=0, description="How fast the weight falls; 10 in FedAsync.")
    b: float = Field(4.0, ge=0, description="Staleness up to which an update counts in full; 4 in FedAsync.")

    def weight(self, staleness: int) -> float:
        """Return s(t)."""
        return 1.0 if staleness <= self.b else 1.0 / (self.a * (staleness - self.b) + 1.0)


class FedAsync(AsyncRule):
    """Adds alpha s(t) times every update, where t is its staleness.

    After Xie, Koyejo and Gupta, "Asynchronous federated optimization", arXiv 1903.03934, section 3, with the update in
    place of the difference between the worker's model and the current one.
    """

    kind: Literal["fed_async"] = "fed_async"
    staleness: Annotated[Constant | Polynomial | Hinge, Field(discriminator="kind")] = Field(
        Polynomial(), description="How an update's weight falls with its staleness."
    )

    def judge(self, update: Vector, sent: Mask, layout: Layout, reference: Vector | None = None) -> Judged:
        """See `AsyncRule.judge`."""
        return Judged(sent.copy(), np.zeros_like(sent))

    def weight(self, staleness: int) -> float:
        """See `AsyncRule.weight`."""
        return self.staleness.weight(staleness)
