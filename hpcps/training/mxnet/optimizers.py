"""Gluon's optimizers, `mxnet.optimizer`, on one flat vector.

Three changes make their steps equal to those of `hpcps.training.pytorch.optimizers`, so that runs of the two backends
differ only by rounding:

- `sgd` and `nag` have the learning rate inside the momentum, where a new rate takes effect late. So the momentum is
  scaled when the rate changes.
- `nag` computes weight decay from the weights that it has just written. So weight decay is added to the gradient
  before the step.
- `adam` adds ε to the second moment before its bias correction. So ε is scaled by that correction.
"""

from __future__ import annotations

from typing import Any

from mxnet import nd, optimizer

from hpcps.numerics.state import State
from hpcps.spec.optimization import Optimizer as OptimizerConfig
from hpcps.training.trainer import FlatOptimizer


class MxnetSgd(FlatOptimizer):
    """Gluon's `sgd` or `nag`: m ← μ·m − rate·g, x ← x + m; Nesterov: x ← x + μ·m − rate·g."""

    def __init__(self, name: str, momentum: float, weight_decay: float) -> None:
        self._gluon = optimizer.create(name, momentum=momentum)
        self._weight_decay = weight_decay
        self._momentum: Any = None
        self._rate = 0.0

    def step(self, parameters: Any, gradient: Any, rate: float) -> None:
        if self._weight_decay:
            gradient += self._weight_decay * parameters
        if self._momentum is None:
            self._momentum = self._gluon.create_state(0, parameters)
        elif rate != self._rate:
            self._momentum *= rate / self._rate
        self._rate = rate
        self._gluon.set_learning_rate(rate)
        self._gluon.update(0, parameters, gradient, self._momentum)

    def state(self) -> State:
        if self._momentum is None:
            return State()
        return State({"momentum": self._momentum.asnumpy()}, {"rate": self._rate})

    def restore(self, state: State, device: Any) -> None:
        momentum = state.arrays.get("momentum")
        self._momentum = None if momentum is None else nd.array(momentum, ctx=device)
        self._rate = state.facts.get("rate", 0.0)


class MxnetAdam(FlatOptimizer):
    """Gluon's `adam`, with L2 weight decay or, as AdamW, decoupled weight decay.

    (Kingma, Ba, "Adam: a method for stochastic optimization", 2015; Loshchilov, Hutter, "Decoupled weight decay
    regularization", 2019.)
    """

    EPSILON = 1e-8

    def __init__(self, betas: tuple[float, float], weight_decay: float, *, decoupled: bool) -> None:
        self._betas = betas
        self._decoupled = decoupled
        self._weight_decay = weight_decay
        self._steps = 0
        self._moments: Any = (nd.zeros(1), nd.zeros(1))
        self._begin()

    def _begin(self) -> None:
        """Create an optimizer that continues after this number of steps."""
        first, second = self._betas
        self._gluon = optimizer.create("adam", beta1=first, beta2=second, begin_num_update=self._steps)

    def step(self, parameters: Any, gradient: Any, rate: float) -> None:
        if not self._steps:
            self._moments = self._gluon.create_state(0, parameters)
        self._steps += 1
        if self._decoupled:
            parameters *= 1 - rate * self._weight_decay
        elif self._weight_decay:
            gradient += self._weight_decay * parameters
        self._gluon.set_learning_rate(rate)
        self._gluon.epsilon = self.EPSILON * (1 - self._betas[1] ** self._steps) ** 0.5
        self._gluon.update(0, parameters, gradient, self._moments)

    def state(self) -> State:
        first, second = self._moments
        return State({"first": first.asnumpy(), "second": second.asnumpy()}, {"steps": self._steps})

    def restore(self, state: State, device: Any) -> None:
        self._moments = tuple(nd.array(state.arrays[name], ctx=device) for name in ("first", "second"))
        self._steps = state.facts["steps"]
        self._begin()


def build_optimizer(config: OptimizerConfig) -> FlatOptimizer:
    """Return the optimizer that an experiment file selects."""
    if config.adaptive:
        return MxnetAdam(config.betas, config.weight_decay, decoupled=config.name == "adamw")
    return MxnetSgd(config.name, config.momentum, config.weight_decay)
