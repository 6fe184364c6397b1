"""What a process has to keep to go on later as if nothing had happened."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class State:
    """Arrays, and facts that JSON can hold; parts of it belong to parts of the process.

    Attributes:
        arrays: by name; those of a part under `part.name`.
        facts: by name; those of a part in a table of its own.
    """

    arrays: dict[str, NDArray[Any]] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)

    def having(self, **parts: State) -> State:
        """Return this state with the states of parts added under their names."""
        arrays, facts = dict(self.arrays), dict(self.facts)
        for name, part in parts.items():
            arrays |= {f"{name}.{key}": values for key, values in part.arrays.items()}
            facts[name] = part.facts
        return State(arrays, facts)

    def part(self, name: str) -> State:
        """Return the state of a part."""
        prefix = f"{name}."
        arrays = {key.removeprefix(prefix): values for key, values in self.arrays.items() if key.startswith(prefix)}
        return State(arrays, self.facts[name])


def generators_state(generators: Mapping[str, np.random.Generator]) -> State:
    """Return where random generators are in their streams."""
    return State(facts={name: _listed(generator.bit_generator.state) for name, generator in generators.items()})


def restore_generators(generators: Mapping[str, np.random.Generator], state: State) -> None:
    """Put random generators where `generators_state` found them."""
    for name, generator in generators.items():
        generator.bit_generator.state = state.facts[name]


def _listed(value: Any) -> Any:
    """Write arrays as lists, which JSON can hold and numpy takes back."""
    if isinstance(value, Mapping):
        return {key: _listed(item) for key, item in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value
