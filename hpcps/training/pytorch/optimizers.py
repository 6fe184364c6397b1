"""Optimizers on one flat vector, with the formulas of `torch.optim`.

`torch.optim` itself loads torch's compiler at the first step, which takes 1.3 s and 77 MB in every process.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hpcps.numerics.state import State
from hpcps.spec.optimization import Optimizer as OptimizerConfig
from hpcps.training.trainer import FlatOptimizer

_LARGEST = torch.finfo(torch.float32).max


def factor(value: float) -> float:
    """Return a factor for float32 numbers: infinite if it exceeds them.

    torch raises an exception for a larger finite factor. With an infinite one the model of the process is not finite,
    as after any rate that is too large.
    """
    return value if abs(value) <= _LARGEST else math.copysign(math.inf, value)


class TorchSgd(FlatOptimizer):
    """Stochastic gradient descent with momentum, plain or Nesterov's in torch's form.

    m ← μ·m + g, x ← x − rate·m; Nesterov: x ← x − rate·(g + μ·m). The momentum does not contain the rate, so a
    new rate takes effect at once. (Sutskever, Martens, Dahl, Hinton, "On the importance of initialization and momentum
    in deep learning", 2013, with torch's modification.)
    """

    def __init__(self, momentum: float, weight_decay: float, *, nesterov: bool) -> None:
        self._momentum = momentum
        self._weight_decay = factor(weight_decay)
        self._nesterov = nesterov
        self._buffer: Tensor | None = None

    def step(self, parameters: Tensor, gradient: Tensor, rate: float) -> None:
        if self._weight_decay:
            gradient.add_(parameters, alpha=self._weight_decay)
        direction = gradient
        if self._momentum:
            if self._buffer is None:
                self._buffer = gradient.clone()
            else:
                self._buffer.mul_(self._momentum).add_(gradient)
            direction = gradient.add_(self._buffer, alpha=self._momentum) if self._nesterov else self._buffer
        parameters.add_(direction, alpha=-factor(rate))

    def state(self) -> State:
        return State() if self._buffer is None else State({"momentum": self._buffer.cpu().numpy().copy()})

    def restore(self, state: State, device: torch.device) -> None:
        momentum = state.arrays.get("momentum")
        self._buffer = None if momentum is None else torch.from_numpy(momentum).to(device)


class TorchAdam(FlatOptimizer):
    """Adam with L2 weight decay, or with decoupled weight decay (AdamW): x ← (1 − rate·λ)x before the step.

    (Kingma, Ba, "Adam: a method for stochastic optimization", 2015, algorithm 1; Loshchilov, Hutter, "Decoupled weight
    decay regularization", 2019, algorithm 2, with torch's λ.)
    """

    EPSILON = 1e-8

    def __init__(self, betas: tuple[float, float], weight_decay: float, *, decoupled: bool) -> None:
        self._betas = betas
        self._decoupled = decoupled
        self._weight_decay = weight_decay
        self._steps = 0
        self._first = self._second = torch.empty(0)

    def step(self, parameters: Tensor, gradient: Tensor, rate: float) -> None:
        if not self._steps:
            self._first, self._second = torch.zeros_like(parameters), torch.zeros_like(parameters)
        self._steps += 1
        beta1, beta2 = self._betas
        if self._decoupled:
            parameters.mul_(1 - rate * self._weight_decay)
        elif self._weight_decay:
            gradient.add_(parameters, alpha=factor(self._weight_decay))
        self._first.lerp_(gradient, 1 - beta1)
        self._second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        bias1, bias2 = 1 - beta1**self._steps, 1 - beta2**self._steps
        scale = self._second.sqrt().div_(bias2**0.5).add_(self.EPSILON)
        parameters.addcdiv_(self._first, scale, value=-factor(rate / bias1))

    def state(self) -> State:
        moments = {"first": self._first, "second": self._second}
        return State({name: values.cpu().numpy().copy() for name, values in moments.items()}, {"steps": self._steps})

    def restore(self, state: State, device: torch.device) -> None:
        self._first, self._second = (torch.from_numpy(state.arrays[name]).to(device) for name in ("first", "second"))
        self._steps = state.facts["steps"]


def build_optimizer(config: OptimizerConfig) -> FlatOptimizer:
    """Return the optimizer that an experiment file selects."""
    if config.adaptive:
        return TorchAdam(config.betas, config.weight_decay, decoupled=config.name == "adamw")
    return TorchSgd(config.momentum, config.weight_decay, nesterov=config.name == "nag")
