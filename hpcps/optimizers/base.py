"""The base of server optimizers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from hpcps.registry import Config

Mode = Literal["sync", "async"]


class ServerOptimizer(Config, ABC):
    """How the servers change the model by a combined update; a subclass adds `kind` and its own keys.

    The combined update Δ is what the rule returns, and papers call −Δ the pseudo-gradient. An optimizer works on each
    element alone, so every server keeps the state of its shard, and shards and partitions do not change the result.

    Attributes:
        modes: the values of `train.mode` in which the optimizer is defined.
    """

    kind: str
    modes: ClassVar[tuple[Mode, ...]] = ("sync", "async")

    def initial(self) -> Mapping[str, float]:
        """Return the vectors that the optimizer keeps for each element, with their first values; by default none."""
        return {}

    @abstractmethod
    def step(self, update: Any, state: Mapping[str, Any], count: int) -> Any:
        """Return the change of the model; it is added to the model.

        It is called with parts of the vectors: float32 arrays of numpy, or tensors of torch on a device.

        Args:
            update: the combined update Δ `[m]`; it may be overwritten.
            state: the vectors of `initial`, `[m]` each, to be changed in place.
            count: the number of combined updates before this one: rounds, or versions of an asynchronous model.

        Returns:
            The change `[m]`; it may be `update` or a vector of the state.
        """


class NoOptimizer(ServerOptimizer):
    """The model changes by the combined update: Θ ← Θ + Δ, as in ZenoPS and FedAvg."""

    kind: Literal["none"] = "none"

    def step(self, update: Any, state: Mapping[str, Any], count: int) -> Any:
        return update
