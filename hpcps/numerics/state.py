"""The state that a process saves, so that it can resume later with the same results."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Position = dict[str, list[int]]
"""Where a worker is in its data and its random streams, by name; see the message `Update`."""


@dataclass(frozen=True)
class State:
    """Arrays, and facts that JSON can hold; components of the process have states of their own inside it.

    Attributes:
        arrays: by name; the name of a component's array is `component.name`.
        facts: by name; the facts of a component are in a table of their own.
    """

    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def having(self, **parts: State) -> State:
        """Return this state with the states of components added under their names."""
        arrays, facts = dict(self.arrays), dict(self.facts)
        for name, part in parts.items():
            arrays |= {f"{name}.{key}": values for key, values in part.arrays.items()}
            facts[name] = part.facts
        return State(arrays, facts)

    def part(self, name: str) -> State:
        """Return the state of a component."""
        prefix = f"{name}."
        arrays = {key.removeprefix(prefix): values for key, values in self.arrays.items() if key.startswith(prefix)}
        return State(arrays, self.facts[name])


@dataclass(frozen=True)
class PackedState:
    """A state as a message holds it; the same state always gives the same.

    Attributes:
        facts: its facts.
        arrays: name, type and shape of each array, by name.
        values: the bytes of the arrays, one after another, as float32 `[m]`; filled up with zeros.
    """

    facts: dict[str, Any]
    arrays: list[list[Any]]
    values: NDArray[np.float32]

    @staticmethod
    def of(state: State) -> PackedState:
        """Pack a state."""
        arrays = sorted(state.arrays.items())
        table = [[name, values.dtype.str, list(values.shape)] for name, values in arrays]
        size = sum(values.nbytes for _, values in arrays)
        packed = np.empty(-(-size // 4) * 4, np.uint8)
        packed[size:] = 0
        start = 0
        for _, values in arrays:
            packed[start : start + values.nbytes] = np.ascontiguousarray(values).reshape(-1).view(np.uint8)
            start += values.nbytes
        return PackedState(state.facts, table, packed.view(np.float32))

    def unpacked(self) -> State:
        """Return a copy of the state.

        Raises:
            ValueError: the table does not fit the bytes.
        """
        content, arrays, start = self.values.tobytes(), {}, 0
        for name, kind, shape in self.arrays:
            dtype, count = _plain_type(kind), math.prod(shape)
            if min(shape, default=0) < 0 or start + count * dtype.itemsize > len(content):
                raise ValueError(f"{name} does not fit into {len(content)} bytes")
            arrays[name] = np.frombuffer(content, dtype, count, start).reshape(shape).copy()
            start += count * dtype.itemsize
        return State(arrays, self.facts)

    def checksum(self) -> str:
        """Return the SHA-256 of the state."""
        found = hashlib.sha256(json.dumps([self.facts, self.arrays], sort_keys=True).encode())
        found.update(self.values.data)
        return found.hexdigest()


def _plain_type(kind: str) -> np.dtype[Any]:
    """Return the type of numbers of this name."""
    try:
        dtype = np.dtype(kind)
    except TypeError as error:
        raise ValueError(str(error)) from error
    if dtype.kind not in "biuf":
        raise ValueError(f"an array of {kind} has no numbers")
    return dtype


class Kept(Protocol):
    """A component of a process whose state is part of a checkpoint."""

    def state(self) -> State:
        """Return its state."""

    def restore(self, state: State) -> None:
        """Restore its state."""


def generators_state(generators: Mapping[str, np.random.Generator]) -> State:
    """Return the positions of random generators in their streams."""
    return State(facts={name: _listed(generator.bit_generator.state) for name, generator in generators.items()})


def restore_generators(generators: Mapping[str, np.random.Generator], state: State) -> None:
    """Set random generators to the positions that `generators_state` returned."""
    for name, generator in generators.items():
        generator.bit_generator.state = state.facts[name]


def stream_positions(generators: Mapping[str, np.random.Generator]) -> Position:
    """Return what distinguishes generators of `hpcps.seeds` from new ones of the same streams, as numbers."""
    states = {name: _listed(generator.bit_generator.state) for name, generator in generators.items()}
    return {
        name: [
            *state["state"]["counter"],
            *state["buffer"],
            state["buffer_pos"],
            state["has_uint32"],
            state["uinteger"],
        ]
        for name, state in states.items()
    }


def go_to_positions(generators: Mapping[str, np.random.Generator], positions: Mapping[str, Sequence[int]]) -> None:
    """Set new generators of streams to the positions that `stream_positions` returned."""
    for name, generator in generators.items():
        counter, buffer, rest = positions[name][:4], positions[name][4:8], positions[name][8:]
        state = dict(generator.bit_generator.state)
        key = state["state"]["key"]
        state |= {"state": {"counter": np.array(counter, np.uint64), "key": key}, "buffer": np.array(buffer, np.uint64)}
        state |= dict(zip(("buffer_pos", "has_uint32", "uinteger"), rest, strict=True))
        generator.bit_generator.state = state


def _listed(value: Any) -> Any:
    """Replace arrays by lists, which JSON can hold and numpy accepts in their place."""
    if isinstance(value, Mapping):
        return {key: _listed(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value
