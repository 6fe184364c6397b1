"""What a validator has accepted so far."""

from __future__ import annotations

from hpcps.numerics.state import State
from hpcps.roles.tally import Tally


class Acceptance:
    """Counts since the last evaluation and since the start, for the record of an evaluation."""

    def __init__(self) -> None:
        self._since_evaluation, self._since_start = Tally(), Tally()

    def add(self, tally: Tally) -> None:
        """Add the counts of a round."""
        self._since_evaluation.add(tally)
        self._since_start.add(tally)

    def fields(self) -> dict[str, object]:
        """Return the rates, and reset the counts since the last evaluation."""
        fields: dict[str, object] = {
            "acceptance_rate_epoch": self._since_evaluation.acceptance_rate,
            "acceptance_rate_cumulative": self._since_start.acceptance_rate,
            "acceptance_rate_sent_epoch": self._since_evaluation.acceptance_rate_sent,
            "acceptance_rate_sent_cumulative": self._since_start.acceptance_rate_sent,
            "rejected_blocks_cumulative": self._since_start.rejected,
        }
        self._since_evaluation = Tally()
        return fields

    def state(self) -> State:
        """Return the counts, for a checkpoint."""
        return State().having(evaluation=self._since_evaluation.state(), start=self._since_start.state())

    def restore(self, state: State) -> None:
        """Restore the counts."""
        self._since_evaluation = Tally.restored(state.part("evaluation"))
        self._since_start = Tally.restored(state.part("start"))
