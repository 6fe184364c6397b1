"""Artificial differences in speed between workers, in addition to those of the machines."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hpcps.registry.config import DAY, MOST, MOST_ROLES, Config


class NoDelay(Config):
    """No delay."""

    kind: Literal["none"] = "none"

    def draw(self, generator: np.random.Generator) -> float:
        """Return the next delay in seconds."""
        return 0.0


class ConstantDelay(Config):
    """A constant delay."""

    kind: Literal["constant"] = "constant"
    seconds: float = Field(1.0, ge=0, le=DAY, description="The delay in seconds.")

    def draw(self, generator: np.random.Generator) -> float:
        """Return the next delay in seconds."""
        return self.seconds


class UniformDelay(Config):
    """A delay drawn uniformly between two bounds."""

    kind: Literal["uniform"] = "uniform"
    low: float = Field(0.0, ge=0, le=DAY, description="Lower bound in seconds.")
    high: float = Field(1.0, gt=0, le=DAY, description="Upper bound in seconds; at least `low`.")

    def draw(self, generator: np.random.Generator) -> float:
        """Return the next delay in seconds."""
        return float(generator.uniform(self.low, self.high))


class LogNormalDelay(Config):
    """A lognormal delay: usually short, occasionally very long."""

    kind: Literal["lognormal"] = "lognormal"
    median: float = Field(1.0, gt=0, le=DAY, description="Median in seconds.")
    sigma: float = Field(1.0, ge=0, le=10, description="Standard deviation of the natural logarithm.")

    def draw(self, generator: np.random.Generator) -> float:
        """Return the next delay in seconds."""
        return float(self.median * np.exp(self.sigma * generator.standard_normal()))


AnyDelay = Annotated[NoDelay | ConstantDelay | UniformDelay | LogNormalDelay, Field(discriminator="kind")]


class Slow(Config):
    """Workers whose local steps take longer."""

    workers: Annotated[tuple[Annotated[int, Field(ge=0, lt=MOST_ROLES)], ...], Field(strict=False)] = Field(
        (), description="The workers' indices; none: no worker is slowed down."
    )
    factor: float = Field(1.0, ge=1, le=MOST, description="Factor on the time of their local steps.")


class Heterogeneity(Config):
    """Slower workers. Over MPI the time really passes; in one process delays pass in virtual time."""

    slow: Slow = Slow()
    delay: AnyDelay = Field(
        NoDelay(), description="A delay before each worker's message of a round, in seconds, drawn from the seed."
    )

    def slowdown(self, role: str, index: int) -> float:
        """Return the factor on the time of a role's local steps."""
        return self.slow.factor if role == "worker" and index in self.slow.workers else 1.0
