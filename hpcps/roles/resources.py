"""The part of a machine that a role may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from hpcps.numerics.layout import Allocate, private
from hpcps.numerics.state import PackedState
from hpcps.roles.evaluation_job import ModelEvaluations
from hpcps.training.trainer import Trainer


class Replicas:
    """Builds trainers of other roles, for audits."""

    def __init__(self, build: Callable[[str, int], Trainer]) -> None:
        """Take what returns a new trainer of a role, such as `("worker", 3)`."""
        self.build = build

    @cached_property
    def probe(self) -> str:
        """The SHA-256 of the state after one local step from the initial weights on validator 0's first batch.

        The roles of a process take this step once.
        """
        trainer = self.build("validator", 0)
        with np.errstate(over="ignore", invalid="ignore"):
            trainer.train(1)
        return PackedState.of(trainer.state()).checksum()


@dataclass(frozen=True)
class Resources:
    """A role's share of its machine.

    Attributes:
        allocate: allocates memory to send from, which other processes of the machine may be able to read in place.
        local: allocates memory for vectors that are not sent; it and `allocate` may give the memory of a device, as
            `DeviceVector`.
        on_host: allocates memory of the host to send from, also if `allocate` gives the memory of a device.
        threads: the number of threads that combine updates; in a synchronous run the other processes wait then.
        evaluations: evaluates for the evaluator; None: the evaluator does it with a trainer of its own.
        replicas: builds trainers for audits; None without them.
    """

    allocate: Allocate = private
    local: Allocate = private
    on_host: Allocate = private
    threads: int = 1
    evaluations: ModelEvaluations | None = None
    replicas: Replicas | None = None


ALONE = Resources()
"""The resources of a role that shares nothing."""
