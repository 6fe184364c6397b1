"""The state that a process saves, so that it can resume later with the same results."""

from __future__ import annotations

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
