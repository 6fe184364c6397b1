"""Server optimizers: adaptive ones, and ones with momentum (SGD, heavy ball, Nesterov's, and its asynchronous form).

With Δ the combined update, γ = `lr` and β = `momentum`. The papers have the opposite sign: their gradient is −Δ.

The adaptive ones are of Reddi et al., "Adaptive federated optimization", 2021, arXiv 2003.00295: m ← β₁m + (1 − β₁)Δ,
then v by the method, then Θ ← Θ + γm / (√v + τ), without correction of the bias; v begins at τ².
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from hpcps.optimizers.base import Mode, ServerOptimizer
from hpcps.registry.config import LARGEST_RATE, MOST

_LR = Field(1.0, gt=0, le=LARGEST_RATE, description="Learning rate of the server.")
_MOMENTUM = Field(0.9, ge=0, lt=1, description="Momentum of the server.")


class ServerSgd(ServerOptimizer):
    """Gradient descent: Θ ← Θ + γΔ. It equals `train.global_lr`; with rate 1 it equals `none`."""

    kind: Literal["sgd"] = "sgd"
    lr: float = _LR

    def step(self, update: Any, state: Mapping[str, Any], count: int) -> Any:
        update *= self.lr
        return update


class ServerMomentum(ServerOptimizer):
    """Heavy-ball momentum: m ← βm + Δ, Θ ← Θ + γm.

    FedAvgM (Hsu, Qi, Brown, 2019, arXiv 1909.06335) and SlowMo (Wang et al., 2020, arXiv 1910.00643).
    """

    kind: Literal["momentum"] = "momentum"
    lr: float = _LR
    momentum: float = _MOMENTUM

    def initial(self) -> Mapping[str, float]:
        return {"momentum": 0.0}

    def step(self, update: Any, state: Mapping[str, Any], count: int) -> Any:
        return self.lr * _gather(state["momentum"], self.momentum, update)


class ServerNesterov(ServerOptimizer):
    """Nesterov's momentum: m ← βm + Δ, Θ ← Θ + γ(βm + Δ).

    The outer optimizer of DiLoCo, with its values as defaults (Douillard et al., 2023, arXiv 2311.08105).
    """

    kind: Literal["nesterov"] = "nesterov"
    lr: float = Field(0.7, gt=0, le=LARGEST_RATE, description="Learning rate of the server.")
    momentum: float = _MOMENTUM

    def initial(self) -> Mapping[str, float]:
        return {"momentum": 0.0}

    def step(self, update: Any, state: Mapping[str, Any], count: int) -> Any:
        update += self.momentum * _gather(state["momentum"], self.momentum, update)
        update *= self.lr
        return update


class DelayedNesterov(ServerOptimizer):
    """Nesterov's momentum for asynchronous training, which changes once in N = `every` updates.

    Each update: Θ ← Θ + γΔ/N, S ← S + Δ. Each N-th in addition: m ← βm + S/N, Θ ← Θ + γβm, S ← 0. The momentum of one
    round of N workers is so applied once, and not N times.

    After Liu et al., "Asynchronous local-SGD training for language modeling", 2024, arXiv 2401.09135, algorithm 3.
    """

    kind: Literal["delayed_nesterov"] = "delayed_nesterov"
    modes: ClassVar[tuple[Mode, ...]] = ("async",)
    lr: float = Field(0.7, gt=0, le=LARGEST_RATE, description="Learning rate of the server.")
    momentum: float = _MOMENTUM
    every: int = Field(4, ge=1, le=MOST, description="Updates between two changes of the momentum, N.")

    def initial(self) -> Mapping[str, float]:
        return {"momentum": 0.0, "sum": 0.0}

    def step(self, update: Any, state: Mapping[str, Any], count: int) -> Any:
        total = state["sum"]
        total += update
        update /= self.every
        if (count + 1) % self.every == 0:
            total /= self.every
            update += self.momentum * _gather(state["momentum"], self.momentum, total)
            total[:] = 0
        update *= self.lr
        return update


def _gather(momentum: Any, beta: float, update: Any) -> Any:
    """Add an update to a momentum that decays by beta; return the momentum."""
    momentum *= beta
    momentum += update
    return momentum


_BETA2 = Field(0.99, ge=0, lt=1, description="Decay rate of the second moment, β₂.")


class AdaptiveOptimizer(ServerOptimizer):
    """A server optimizer that divides the momentum by the root of a second moment."""

    lr: float = Field(0.01, gt=0, le=LARGEST_RATE, description="Learning rate of the server, γ.")
    beta1: float = Field(0.9, ge=0, lt=1, description="Decay rate of the momentum, β₁.")
    tau: float = Field(0.001, gt=0, le=1, description="Degree of adaptivity, τ; the second moment begins at τ².")

    def initial(self) -> Mapping[str, float]:
        return {"momentum": 0.0, "second": self.tau**2}

    def step(self, update: Any, state: Mapping[str, Any], count: int) -> Any:
        momentum, second = state["momentum"], state["second"]
        momentum *= self.beta1
        momentum += (1 - self.beta1) * update
        update *= update
        self._accumulate(second, update)
        return self.lr * momentum / (second**0.5 + self.tau)

    @abstractmethod
    def _accumulate(self, second: Any, square: Any) -> None:
        """Change the second moment by Δ² in place; both are `[m]`."""


class ServerAdagrad(AdaptiveOptimizer):
    """FedAdagrad: v ← v + Δ²."""

    kind: Literal["adagrad"] = "adagrad"

    def _accumulate(self, second: Any, square: Any) -> None:
        second += square


class ServerAdam(AdaptiveOptimizer):
    """FedAdam: v ← β₂v + (1 − β₂)Δ²."""

    kind: Literal["adam"] = "adam"
    beta2: float = _BETA2

    def _accumulate(self, second: Any, square: Any) -> None:
        second *= self.beta2
        second += (1 - self.beta2) * square


class ServerYogi(AdaptiveOptimizer):
    """FedYogi: v ← v − (1 − β₂)Δ² sign(v − Δ²)."""

    kind: Literal["yogi"] = "yogi"
    beta2: float = _BETA2

    def _accumulate(self, second: Any, square: Any) -> None:
        above, below = second > square, second < square
        square *= 1 - self.beta2
        second -= above * square
        second += below * square
