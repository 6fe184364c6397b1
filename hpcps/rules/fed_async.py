"""FedAsync: the weight of an update decreases with its staleness."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from hpcps.numerics.blocks import Float64
from hpcps.numerics.updates import Updates
from hpcps.registry.config import MOST, Config
from hpcps.rules.asynchronous import Decision, ScalingRule
from hpcps.rules.base import Sees
from hpcps.rules.context import AsyncContext


class Constant(Config):
    """s(t) = 1."""

    kind: Literal["constant"] = "constant"

    def weight(self, staleness: int) -> float:
        """Return s(t)."""
        return 1.0


class Polynomial(Config):
    """s(t) = (1 + t)^-a."""

    kind: Literal["polynomial"] = "polynomial"
    a: float = Field(0.5, ge=0, le=100, description="Exponent; 0.5 in FedAsync.")

    def weight(self, staleness: int) -> float:
        """Return s(t)."""
        return float((1.0 + staleness) ** -self.a)


class Hinge(Config):
    """s(t) = 1 if t <= b, else 1 / (a (t - b) + 1)."""

    kind: Literal["hinge"] = "hinge"
    a: float = Field(10.0, ge=0, le=MOST, description="Slope of 1 / s(t) above b; 10 in FedAsync.")
    b: float = Field(4.0, ge=0, le=MOST, description="Staleness up to which the weight is 1; 4 in FedAsync.")

    def weight(self, staleness: int) -> float:
        """Return s(t)."""
        return 1.0 if staleness <= self.b else 1.0 / (self.a * (staleness - self.b) + 1.0)


class FedAsync(ScalingRule):
    """Adds every update multiplied by alpha s(t), where t is its staleness.

    After Xie, Koyejo and Gupta, "Asynchronous federated optimization", arXiv 1903.03934, section 3, which adds the
    difference between the worker's model and the current model instead of the update.
    """

    sees: ClassVar[Sees] = "coordinate"

    kind: Literal["fed_async"] = "fed_async"
    staleness: Annotated[Constant | Polynomial | Hinge, Field(discriminator="kind")] = Field(
        Polynomial(), description="Weight of an update as a function s(t) of its staleness t."
    )

    def factors(self, update: Updates, context: AsyncContext) -> tuple[Decision, Float64 | None]:
        return Decision.accept(context.sent), None

    def weight(self, staleness: int) -> float:
        return self.staleness.weight(staleness)
