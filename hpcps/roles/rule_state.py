"""The state of a rule, which its combiner keeps from one round to the next."""

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
        self.random = generator(seed, combiner.role, combiner.index, "rule") if "random" in rule.needs else None
        self.arrays = Arrays(writable="state" in rule.needs)

    def state(self) -> State:
        """Return a copy of both."""
        streams = {} if self.random is None else {"rule": self.random}
        # By number: not every name of an array is valid in a file of arrays.
        arrays = {str(number): values.copy() for number, values in enumerate(self.arrays.values())}
        return State(arrays, {"names": list(self.arrays)}).having(streams=generators_state(streams))

    def restore(self, state: State) -> None:
        """Restore both."""
        if self.random is not None:
            restore_generators({"rule": self.random}, state.part("streams"))
        self.arrays.clear()
        self.arrays.update({name: state.arrays[str(number)] for number, name in enumerate(state.facts["names"])})
