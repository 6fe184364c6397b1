"""The part of a machine that a role may use."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from hpcps.numerics.layout import Allocate, private
from hpcps.roles.evaluation_job import ModelEvaluations
from hpcps.training.trainer import Trainer


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
        build: returns a new trainer of a role, such as `("worker", 3)`, for audits; None without them.
    """

    allocate: Allocate = private
    local: Allocate = private
    on_host: Allocate = private
    threads: int = 1
    evaluations: ModelEvaluations | None = None
    build: Callable[[str, int], Trainer] | None = None


ALONE = Resources()
"""The resources of a role that shares nothing."""
