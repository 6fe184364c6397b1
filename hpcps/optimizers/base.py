"""The base of server optimizers, and a server optimizer with its state for one shard of the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np

from hpcps.numerics.arrays import is_tensor
from hpcps.numerics.layout import Allocate, Vector, private
from hpcps.numerics.state import State
from hpcps.numerics.vectors import on_host, on_memory
from hpcps.registry import Config
from hpcps.registry.failures import described, errors_of, fault, returned

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


TILE = 1 << 15
"""Elements of a step on the host: the vectors of a tile fit the cache, so no temporary has the size of the update."""


class Stepper:
    """Applies combined updates to a shard `[m]` with a server optimizer.

    Attributes:
        count: the number of combined updates that were applied.
    """

    def __init__(self, optimizer: ServerOptimizer, size: int, allocate: Allocate = private) -> None:
        """Begin with the initial state.

        Args:
            optimizer: the optimizer.
            size: m.
            allocate: allocates the vectors of the state.
        """
        self.count = 0
        self._optimizer = optimizer
        with errors_of(optimizer, "its initial() failed", foreign=True):
            first = dict(optimizer.initial())
        self._state: dict[str, Vector] = {name: allocate(size) for name in first}
        for name, value in first.items():
            self._state[name][:] = value
        self._squares = [0.0, 0.0]

    def apply(self, update: Vector, model: Vector, out: Vector, columns: slice = slice(None)) -> bool:
        """Write the model after an update to `out`; a device is waited for once.

        Args:
            update: the combined update of some columns of the shard; it is overwritten, and it may be `out`.
            model: the model there.
            out: gets the next model there; it may be `model`.
            columns: the columns.

        Returns:
            Whether the next model there is finite.
        """
        state = [values[columns] for values in self._state.values()]
        with np.errstate(all="ignore"):
            before, after, good = on_memory(self._apply, out, update, model, *state)
        self._squares = [self._squares[0] + before, self._squares[1] + after]
        return bool(good)

    def _apply(self, out: Any, update: Any, model: Any, *state: Any) -> list[float]:
        """Do the same on arrays in tiles, or on tensors.

        Returns:
            The sums of squares of the update and of the change, and 1 if the next model is finite, else 0.
        """
        size, found = len(out), [0.0, 0.0, 1.0]
        tile = max(size, 1) if is_tensor(out) else TILE
        for start in range(0, size, tile):
            part = slice(start, start + tile)
            combined = update[part]
            before = (combined * combined).sum()
            change = self._step(combined, {name: values[part] for name, values in zip(self._state, state, strict=True)})
            after = (change * change).sum()
            out[part] = model[part] + change
            if is_tensor(out):
                import torch

                good = out.isfinite().all().to(before.dtype)
                return torch.stack((before, after, good)).tolist()
            found[0] += float(before)
            found[1] += float(after)
            found[2] *= np.isfinite(out[part]).all()
        return found

    def _step(self, update: Any, state: Mapping[str, Any]) -> Any:
        """Call the optimizer.

        Raises:
            SpecError: its code fails, it replaces a vector of the state, or it returns something else than a vector of
                the size of the update.
        """
        with errors_of(self._optimizer, "its step() failed", foreign=True):
            change = self._optimizer.step(update, vectors := dict(state), self.count)
        if lost := [name for name in {**state, **vectors} if vectors.get(name) is not state.get(name)]:
            what = f"its step() replaced state[{lost[0]!r}], which would be lost: name each vector in initial(), and "
            raise fault(self._optimizer, f"{what}change it in place, as in state[{lost[0]!r}][:] = ...")
        if getattr(change, "shape", None) != update.shape or change.dtype != update.dtype:
            what = f"{described(change)}: it must be float32 {list(update.shape)}"
            raise returned(self._optimizer, "step", what)
        return change

    def turn(self) -> dict[str, object]:
        """Count a combined update, all columns of which are applied; return what the record says of it.

        Both are Euclidean norms over the shard. An update of norm 0 changes the model by the momentum alone.
        """
        update, change = (float(np.sqrt(square)) for square in self._squares)
        self.count += 1
        self._squares = [0.0, 0.0]
        norms = {"update_norm": update, "change_norm": change}
        return {name: norm if np.isfinite(norm) else None for name, norm in norms.items()}

    def state(self) -> State:
        """Return the vectors and the count, for a checkpoint."""
        return State({name: on_host(values).copy() for name, values in self._state.items()}, {"count": self.count})

    def restore(self, state: State) -> None:
        """Restore them."""
        for name, values in self._state.items():
            values[:] = state.arrays[name]
        self.count = state.facts["count"]
