"""What makes some workers slower than others, on top of what the machines do by themselves."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from pydantic import Field, NonNegativeInt

from hpcps.config import Config


class NoDelay(Config):
    """Nothing is added."""

    kind: Literal["none"] = "none"

    def draw(self, generator: np.random.Generator) -> float:
        """Return the next delay in seconds."""
        return 0.0


class ConstantDelay(Config):
    """The same delay every time."""

    kind: Literal["constant"] = "constant"
    seconds: float = Field(1.0, ge=0, description="How long, in seconds.")

    def draw(self, generator: np.random.Generator) -> float:
        """Return the next delay in seconds."""
        return self.seconds


class UniformDelay(Config):
    """Uniform between two bounds."""

    kind: Literal["uniform"] = "uniform"
    low: float = Field(0.0, ge=0, description="At least, in seconds.")
    high: float = Field(1.0, gt=0, description="At most, in seconds; at least `low`.")

    def draw(self, generator: np.random.Generator) -> float:
        """Return the next delay in seconds."""
        return float(generator.uniform(self.low, self.high))


class LogNormalDelay(Config):
    """Lognormal: mostly short, now and then very long."""

    kind: Literal["lognormal"] = "lognormal"
    median: float = Field(1.0, gt=0, description="What half of all stay below, in seconds.")
    sigma: float = Field(1.0, ge=0, description="Standard deviation of the natural logarithm.")

    def draw(self, generator: np.random.Generator) -> float:
        """Return the next delay in seconds."""
        return float(self.median * np.exp(self.sigma * generator.standard_normal()))


AnyDelay = Annotated[NoDelay | ConstantDelay | UniformDelay | LogNormalDelay, Field(discriminator="kind")]


class Slow(Config):
    """Workers whose local steps take longer."""

    workers: Annotated[tuple[NonNegativeInt, ...], Field(strict=False)] = Field(
        (), description="The workers' indices; none: nobody is slowed."
    )
    factor: float = Field(1.0, ge=1, description="How many times as long their local steps take.")


class Heterogeneity(Config):
    """Slower workers; waits are real over MPI and delays pass in virtual time in process."""

    slow: Slow = Slow()
    delay: AnyDelay = Field(
        NoDelay(), description="A delay before each worker's message of a round, in seconds, drawn from the seed."
    )

    def slowdown(self, role: str, index: int) -> float:
        """Return how many times as long a role's local steps take."""
        return self.slow.factor if role == "worker" and index in self.slow.workers else 1.0
