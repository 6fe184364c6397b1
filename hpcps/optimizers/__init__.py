"""Server optimizers: how a combined update changes the model; functions on arrays, with their keys."""

from hpcps.optimizers.base import NoOptimizer, ServerOptimizer
from hpcps.optimizers.fedopt import ServerAdagrad, ServerAdam, ServerYogi
from hpcps.optimizers.momentum import DelayedNesterov, ServerMomentum, ServerNesterov, ServerSgd
from hpcps.optimizers.stepper import Stepper

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
