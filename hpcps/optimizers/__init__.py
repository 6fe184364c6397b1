"""Server optimizers: how a combined update changes the model; functions on arrays, with their keys."""

from hpcps.optimizers.base import NoOptimizer, ServerOptimizer, Stepper
from hpcps.optimizers.formulas import (
    DelayedNesterov,
    ServerAdagrad,
    ServerAdam,
    ServerMomentum,
    ServerNesterov,
    ServerSgd,
    ServerYogi,
)

__all__ = [
    "DelayedNesterov",
    "NoOptimizer",
    "ServerAdagrad",
    "ServerAdam",
    "ServerMomentum",
    "ServerNesterov",
    "ServerOptimizer",
    "ServerSgd",
    "ServerYogi",
    "Stepper",
]
