"""Optimizers on one flat vector, with the formulas of `torch.optim`.

`torch.optim` itself loads torch's compiler at the first step, which takes 1.3 s and 77 MB in every process.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from hpcps.numerics.layout import Block
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
        if self._decoupled:
            parameters.mul_(1 - rate * self._weight_decay)
        elif self._weight_decay:
            gradient.add_(parameters, alpha=factor(self._weight_decay))
        self._move(parameters, gradient, rate)

    def _move(self, parameters: Tensor, gradient: Tensor, rate: float, part: slice = slice(None)) -> None:
        """Change a part of the vectors, after weight decay."""
        beta1, beta2 = self._betas
        first, second, gradient = self._first[part], self._second[part], gradient[part]
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        bias1, bias2 = 1 - beta1**self._steps, 1 - beta2**self._steps
        scale = second.sqrt().div_(bias2**0.5).add_(self.EPSILON)
        parameters[part].addcdiv_(first, scale, value=-factor(rate / bias1))

    def state(self) -> State:
        moments = {"first": self._first, "second": self._second}
        return State({name: values.cpu().numpy().copy() for name, values in moments.items()}, {"steps": self._steps})

    def restore(self, state: State, device: torch.device) -> None:
        self._first, self._second = (torch.from_numpy(state.arrays[name]).to(device) for name in ("first", "second"))
        self._steps = state.facts["steps"]


class TorchMuon(TorchAdam):
    """Muon for the matrices of the hidden layers, and AdamW for the other parameters.

    m ← μ·m + (1 − μ)·g, x ← x − rate·0.2·√max(rows, columns)·O((1 − μ)·g + μ·m), where O is the matrix of the singular
    vectors of another, whose singular values are about 1. A kernel of a convolution is a matrix with a row for each
    output channel. The factor gives the step about the root mean square of AdamW's, so one rate and one weight decay
    suit all parameters. The momentum of a matrix has the place of AdamW's first moment.

    (Jordan et al., "Muon: an optimizer for hidden layers in neural networks", 2024; the factor: Liu et al., "Muon is
    scalable for LLM training", 2025, arXiv 2502.16982; for local steps: Thérien et al., "MuLoCo: Muon is a practical
    inner optimizer for DiLoCo", 2025, arXiv 2505.23725.)
    """

    RMS = 0.2

    def __init__(
        self, momentum: float, betas: tuple[float, float], weight_decay: float, matrices: Sequence[Block]
    ) -> None:
        """Begin.

        Args:
            momentum: μ.
            betas: the decay rates of AdamW.
            weight_decay: λ, of all parameters.
            matrices: the blocks of the vector that Muon changes, in order.
        """
        super().__init__(betas, weight_decay, decoupled=True)
        self._momentum = momentum
        self._matrices = matrices

    def _move(self, parameters: Tensor, gradient: Tensor, rate: float, part: slice = slice(None)) -> None:
        end = 0
        for block in self._matrices:
            super()._move(parameters, gradient, rate, slice(end, block.offset))
            end = block.stop
            self._move_matrix(parameters, gradient, rate, block)
        super()._move(parameters, gradient, rate, slice(end, None))

    def _move_matrix(self, parameters: Tensor, gradient: Tensor, rate: float, block: Block) -> None:
        part, rows = slice(block.offset, block.stop), block.shape[0]
        momentum, direction = self._first[part], gradient[part]
        momentum.lerp_(direction, 1 - self._momentum)
        # The columns of a kernel may have another order in memory, which has no effect on the singular vectors.
        matrix = direction.lerp(momentum, self._momentum).view(rows, -1)
        scale = self.RMS * max(matrix.shape) ** 0.5
        parameters[part].view(rows, -1).add_(orthogonalised(matrix), alpha=-factor(rate * scale))


def orthogonalised(matrix: Tensor) -> Tensor:
    """Return about U·Vᵀ of a matrix U·S·Vᵀ; singular values that are not tiny become 0.7 to 1.2.

    Five steps of a Newton-Schulz iteration with the coefficients of Jordan et al., which grow small singular values
    fast. A matrix of zeros remains one.
    """
    wide: Tensor = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    wide = wide / wide.norm().clamp(min=1e-7)
    for _ in range(5):
        square = wide @ wide.T
        wide = 3.4445 * wide + (2.0315 * square @ square - 4.7750 * square) @ wide
    return wide if matrix.shape[0] <= matrix.shape[1] else wide.T


def build_optimizer(config: OptimizerConfig, matrices: Sequence[Block] = ()) -> FlatOptimizer:
    """Return the optimizer that an experiment file selects.

    Args:
        config: the selection.
        matrices: the weights of the hidden layers, each with two or more dimensions, which Muon treats as matrices.
    """
    if config.name == "muon":
        return TorchMuon(config.momentum, config.betas, config.weight_decay, matrices)
    if config.adaptive:
        return TorchAdam(config.betas, config.weight_decay, decoupled=config.name == "adamw")
    return TorchSgd(config.momentum, config.weight_decay, nesterov=config.name == "nag")
