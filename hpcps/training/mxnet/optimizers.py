"""The optimizers, on one flat vector: the definitions of `hpcps.training.pytorch.optimizers` in NDArrays.

Gluon's own `nag` has the learning rate inside the momentum, so a change of the rate takes effect late, and runs of the
two backends would differ from the first decay on.
"""

from __future__ import annotations

from typing import Any, Protocol

from mxnet import nd

from hpcps.spec.schema import Optimizer as OptimizerConfig
from hpcps.state import State


class Optimizer(Protocol):
    """Moves the parameters against the gradient; keeps its state between steps."""

    def step(self, parameters: Any, gradient: Any, rate: float) -> None:
        """Take one step in place, at this learning rate; `gradient` `[d]` may be overwritten."""

    def state(self) -> State:
        """Return a copy of what it keeps between steps."""

    def restore(self, state: State, device: Any) -> None:
        """Take it back, to where the parameters are."""


class Sgd:
    """Stochastic gradient descent with momentum: m ← μ·m + g, x ← x − rate·m; Nesterov: x ← x − rate·(g + μ·m)."""

    def __init__(self, momentum: float, weight_decay: float, *, nesterov: bool) -> None:
        self._momentum = momentum
        self._weight_decay = weight_decay
        self._nesterov = nesterov
        self._buffer: Any = None

    def step(self, parameters: Any, gradient: Any, rate: float) -> None:
        """Take one step in place."""
        if self._weight_decay:
            gradient += self._weight_decay * parameters
        direction = gradient
        if self._momentum:
            if self._buffer is None:
                self._buffer = gradient.copy()
            else:
                self._buffer *= self._momentum
                self._buffer += gradient
            direction = self._buffer
            if self._nesterov:
                gradient += self._momentum * self._buffer
                direction = gradient
        parameters -= rate * direction

    def state(self) -> State:
        """Return the momentum, if there is any yet."""
        return State() if self._buffer is None else State({"momentum": self._buffer.asnumpy()})

    def restore(self, state: State, device: Any) -> None:
        """Take it back."""
        momentum = state.arrays.get("momentum")
        self._buffer = None if momentum is None else nd.array(momentum, ctx=device)


class Adam:
    """Adam with L2 weight decay (Kingma, Ba, "Adam: a method for stochastic optimization", 2015, algorithm 1)."""

    EPSILON = 1e-8

    def __init__(self, betas: tuple[float, float], weight_decay: float) -> None:
        self._betas = betas
        self._weight_decay = weight_decay
        self._steps = 0
        self._first: Any = nd.zeros(1)
        self._second: Any = nd.zeros(1)

    def step(self, parameters: Any, gradient: Any, rate: float) -> None:
        """Take one step in place."""
        if not self._steps:
            self._first, self._second = nd.zeros_like(parameters), nd.zeros_like(parameters)
        self._steps += 1
        beta1, beta2 = self._betas
        if self._weight_decay:
            gradient += self._weight_decay * parameters
        self._first += (1 - beta1) * (gradient - self._first)
        self._second *= beta2
        self._second += (1 - beta2) * gradient * gradient
        bias1, bias2 = 1 - beta1**self._steps, 1 - beta2**self._steps
        parameters -= rate / bias1 * self._first / (self._second.sqrt() / bias2**0.5 + self.EPSILON)

    def state(self) -> State:
        """Return both moments and the number of steps."""
        arrays = {"first": self._first.asnumpy(), "second": self._second.asnumpy()}
        return State(arrays, {"steps": self._steps})

    def restore(self, state: State, device: Any) -> None:
        """Take them back."""
        self._first, self._second = (nd.array(state.arrays[name], ctx=device) for name in ("first", "second"))
        self._steps = state.facts["steps"]


def build_optimizer(config: OptimizerConfig) -> Optimizer:
    """Make the optimizer of an experiment file."""
    if config.name == "adam":
        return Adam(config.betas, config.weight_decay)
    return Sgd(config.momentum, config.weight_decay, nesterov=config.name == "nag")
