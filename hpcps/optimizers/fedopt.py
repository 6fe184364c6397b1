"""Adaptive server optimizers, of Reddi et al., "Adaptive federated optimization", 2021, arXiv 2003.00295.

m ← β₁m + (1 − β₁)Δ, then v by the method, then Θ ← Θ + γm / (√v + τ), without correction of the bias; v begins at τ².
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field

from hpcps.optimizers.base import ServerOptimizer
from hpcps.registry.config import LARGEST_FACTOR

_BETA2 = Field(0.99, ge=0, lt=1, description="Decay rate of the second moment, β₂.")


class AdaptiveOptimizer(ServerOptimizer):
    """A server optimizer that divides the momentum by the root of a second moment."""

    lr: float = Field(0.01, gt=0, le=LARGEST_FACTOR, description="Learning rate of the server, γ.")
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
