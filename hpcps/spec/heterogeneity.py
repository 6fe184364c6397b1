"""Artificial differences in speed between workers, in addition to those of the machines."""

from __future__ import annotations

from itertools import count, islice
from math import inf
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from hpcps.registry.config import DAY, MOST, MOST_ROLES, NAME, Config


class NoDelay(Config):
    """No time: 0 seconds."""

    kind: Literal["none"] = "none"

    @property
    def longest(self) -> float:
        """The longest delay in seconds."""
        return 0.0

    def draw(self, generator: np.random.Generator) -> float:
        """Return the next delay in seconds."""
        return 0.0


class ConstantDelay(Config):
    """A constant time."""

    kind: Literal["constant"] = "constant"
    seconds: float = Field(1.0, ge=0, le=DAY, description="The time in seconds.")

    @property
    def longest(self) -> float:
        """The longest delay in seconds."""
        return self.seconds

    def draw(self, generator: np.random.Generator) -> float:
        """Return the next delay in seconds."""
        return self.seconds


class UniformDelay(Config):
    """A time drawn uniformly between two bounds."""

    kind: Literal["uniform"] = "uniform"
    low: float = Field(0.0, ge=0, le=DAY, description="Lower bound in seconds.")
    high: float = Field(1.0, gt=0, le=DAY, description="Upper bound in seconds; at least `low`.")

    @property
    def longest(self) -> float:
        """The longest delay in seconds."""
        return self.high

    def draw(self, generator: np.random.Generator) -> float:
        """Return the next delay in seconds."""
        return float(generator.uniform(self.low, self.high))


class LogNormalDelay(Config):
    """A lognormal time: usually short, occasionally very long."""

    kind: Literal["lognormal"] = "lognormal"
    median: float = Field(1.0, gt=0, le=DAY, description="Median in seconds.")
    sigma: float = Field(1.0, ge=0, le=10, description="Standard deviation of the natural logarithm.")

    @property
    def longest(self) -> float:
        """The longest delay in seconds."""
        return inf

    def draw(self, generator: np.random.Generator) -> float:
        """Return the next delay in seconds."""
        return float(self.median * np.exp(self.sigma * generator.standard_normal()))


AnyDelay = Annotated[NoDelay | ConstantDelay | UniformDelay | LogNormalDelay, Field(discriminator="kind")]


Workers = Annotated[tuple[Annotated[int, Field(ge=0, lt=MOST_ROLES)], ...], Field(strict=False)]
Factor = Annotated[float, Field(ge=1, le=MOST)]


class Slow(Config):
    """Workers whose local steps take longer."""

    workers: Workers = Field((), description="The workers' indices; none: no worker is slowed down.")
    factor: Factor = Field(1.0, description="Factor on the time of their local steps.")


class SpeedChange(Config):
    """Another speed of a class of workers, from an epoch on."""

    epoch: int = Field(..., ge=1, le=MOST, description="Number of the worker's own epochs before the change.")
    factor: Factor = Field(..., description="Factor on the time of its local steps from then on.")


class WorkerClass(Config):
    """Workers of one kind: their speed and their batch size."""

    name: str = Field(..., pattern=NAME, description="Name of the class; records state the class of each worker.")
    workers: Annotated[int, Field(ge=1, le=MOST_ROLES)] | Workers = Field(
        ...,
        description="The workers' indices, or their number: then the class has the first workers that neither a list "
        "nor a class before it has. Workers without a class have `train.batch_size` and are not slowed down.",
    )
    factor: Factor = Field(1.0, description="Factor on the time of their local steps.")
    seconds: float | None = Field(
        None,
        gt=0,
        le=DAY,
        description="Imposed step time: a local step ends no sooner than so many seconds after its start, however long "
        "the computation takes. It excludes `factor` and `then`.",
    )
    batch_size: int | None = Field(
        None,
        ge=1,
        le=MOST,
        description="Samples per local step of these workers; default: `train.batch_size`. Nothing else follows from "
        "it: learning rates and the weights of updates stay, and a simulated step takes `simulation.step`.",
    )
    then: Annotated[tuple[SpeedChange, ...], Field(strict=False, max_length=100)] = Field(
        (),
        description="Changes of the speed, in the order of their epochs.",
        json_schema_extra={"noun": "change of speed"},
    )

    def slowdown(self, steps: range, steps_per_epoch: int) -> float:
        """Return the factor on the time of a worker's local steps; the mean if it differs between them.

        Args:
            steps: the numbers of the steps, from 0.
            steps_per_epoch: the steps of an epoch of the worker.
        """
        if not self.then or not steps:
            return self.factor
        factors = [self._factor_in(step // steps_per_epoch) for step in steps]
        return factors[0] if len(set(factors)) == 1 else sum(factors) / len(factors)

    def _factor_in(self, epoch: int) -> float:
        return next((change.factor for change in reversed(self.then) if epoch >= change.epoch), self.factor)


class Heterogeneity(Config):
    """Slower workers. Over MPI the time really passes; in one process delays pass in virtual time."""

    slow: Slow = Slow()
    classes: Annotated[tuple[WorkerClass, ...], Field(strict=False, max_length=100)] = Field(
        (),
        description="Classes of workers, each a table [[heterogeneity.classes]].",
        json_schema_extra={"noun": "class of workers"},
    )
    delay: AnyDelay = Field(
        NoDelay(), description="A delay before each worker's message of a round, in seconds, drawn from the seed."
    )

    def members(self) -> list[tuple[int, ...]]:
        """Return the workers of each class."""
        listed = {index for each in self.classes if not isinstance(each.workers, int) for index in each.workers}
        free = (index for index in count() if index not in listed)
        return [tuple(islice(free, w)) if isinstance(w := each.workers, int) else w for each in self.classes]

    def class_of(self, role: str, index: int) -> WorkerClass | None:
        """Return the class of a role; None if it has none."""
        if role != "worker" or not self.classes:
            return None
        found = (each for each, members in zip(self.classes, self.members(), strict=True) if index in members)
        return next(found, None)

    def speed_of(self, role: str, index: int) -> WorkerClass:
        """Return what states the speed of a role: its class, or one of its own."""
        if role == "worker" and index in self.slow.workers:
            return WorkerClass(name="slow", workers=self.slow.workers, factor=self.slow.factor)
        return self.class_of(role, index) or WorkerClass(name="others", workers=())
