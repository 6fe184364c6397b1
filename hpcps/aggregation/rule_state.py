"""What a rule keeps from one call to the next."""

from __future__ import annotations

from hpcps.numerics.state import State, generators_state, restore_generators
from hpcps.protocol.messages import Peer
from hpcps.rules import Arrays, BaseRule
from hpcps.seeds import generator


class RuleState:
    """A rule's random generator and its arrays, if it needs them.

    Attributes:
        random: the generator; None if the rule needs none.
        arrays: the arrays by name; empty and read-only if the rule needs none.
    """

    def __init__(self, rule: BaseRule, seed: int, combiner: Peer) -> None:
        self.random = generator(seed, combiner.role, combiner.index, "rule") if "random" in rule.requires else None
        self.arrays = Arrays(writable="state" in rule.requires)

    def state(self) -> State:
        """Return a copy of both."""
        streams = {} if self.random is None else {"rule": self.random}
        return arrays_state(self.arrays).having(streams=generators_state(streams))

    def restore(self, state: State) -> None:
        """Restore both."""
        if self.random is not None:
            restore_generators({"rule": self.random}, state.part("streams"))
        restore_arrays(self.arrays, state)


def arrays_state(arrays: Arrays) -> State:
    """Return a copy of arrays, by number: a file of arrays does not accept every name."""
    return State({str(n): values.copy() for n, values in enumerate(arrays.values())}, {"names": list(arrays)})


def restore_arrays(arrays: Arrays, state: State) -> None:
    """Restore the arrays of which `arrays_state` returned a copy."""
    arrays.clear()
    arrays.update({name: state.arrays[str(number)] for number, name in enumerate(state.facts["names"])})
