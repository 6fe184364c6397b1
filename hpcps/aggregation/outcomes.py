"""What has become of the blocks of updates: counts for the record of a round, and between two evaluations."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics.layout import Mask
from hpcps.numerics.state import State
from hpcps.rules import Combined, Rule


@dataclass
class Tally:
    """Counts of (update, block) pairs over some rounds.

    `accepted` and `accepted_sent` are None if the rule did not state them in one of the rounds.
    """

    received: int = 0
    sent: int = 0
    accepted: int | None = 0
    accepted_sent: int | None = 0
    rejected: int = 0
    negated: int = 0

    def add(self, other: Tally) -> None:
        """Add another tally's counts to this one's."""
        self.received += other.received
        self.sent += other.sent
        self.accepted = _sum(self.accepted, other.accepted)
        self.accepted_sent = _sum(self.accepted_sent, other.accepted_sent)
        self.rejected += other.rejected
        self.negated += other.negated

    def fields(self) -> dict[str, object]:
        """Return the fields of the record of a round, without `negated`."""
        return {
            "received_pairs": self.received,
            "sent_pairs": self.sent,
            "skipped_pairs": self.received - self.sent,
            "accepted_pairs": self.accepted,
            "accepted_sent_pairs": self.accepted_sent,
            "rejected_blocks": self.rejected,
            "acceptance_rate": self.acceptance_rate,
        }

    def state(self) -> State:
        """Return the counts, for a checkpoint; there as in records, negated pairs are called `turned`."""
        facts = asdict(self)
        return State(facts=facts | {"turned": facts.pop("negated")})

    @staticmethod
    def restored(state: State) -> Tally:
        """Return the tally that had this state."""
        facts = dict(state.facts)
        return Tally(negated=facts.pop("turned"), **facts)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted pairs divided by received pairs, with skipped blocks; None without updates, or if unknown."""
        return _fraction(self.accepted, self.received)

    @property
    def acceptance_rate_sent(self) -> float | None:
        """Accepted pairs divided by sent and finite pairs; None if there is none, or if unknown."""
        return _fraction(self.accepted_sent, self.sent)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _fraction(accepted: int | None, of: int) -> float | None:
    return accepted / of if of and accepted is not None else None


class BlockOutcomes:
    """What became of each block of the updates of a round, which are combined in partitions.

    A block in several partitions is accepted if all of them are, and sent or rejected if any of them is. `add` only
    keeps what it gets, because receivers wait for the result of a partition; it is counted when somebody asks.
    """

    def __init__(self, updates: int, blocks: int) -> None:
        self._sent: Mask = np.zeros((updates, blocks), np.bool_)
        self._accepted: Mask = np.ones((updates, blocks), np.bool_)
        self._rejected: Mask = np.zeros((updates, blocks), np.bool_)
        self._below_bound: Mask = np.zeros(blocks, np.bool_)
        self._acceptance_known = True
        self._added: list[tuple[slice | NDArray[Any], slice, Mask, Mask, Combined, Rule]] = []

    def add(
        self, rows: slice | NDArray[Any], blocks: slice, sent: Mask, rejected: Mask, combined: Combined, rule: Rule
    ) -> None:
        """Add the outcome of a partition.

        Args:
            rows: the updates that are combined.
            blocks: the blocks of the partition.
            sent: the blocks of these updates that were sent.
            rejected: those that are not finite.
            combined: what the rule returned.
            rule: the rule.
        """
        self._added.append((rows, blocks, sent, rejected, combined, rule))

    def _count(self) -> None:
        added, self._added = self._added, []
        for each in added:
            self._count_in(*each)

    def _count_in(
        self, rows: slice | NDArray[Any], blocks: slice, sent: Mask, rejected: Mask, combined: Combined, rule: Rule
    ) -> None:
        self._sent[rows, blocks] |= sent
        self._accepted[rows, blocks] &= combined.accepted
        self._acceptance_known = self._acceptance_known and combined.acceptance_known
        self._rejected[rows, blocks] |= rejected
        counted = sent & ~rejected if rule.skipped == "left_out" else np.ones_like(sent)
        numbers, block_numbers = np.unique(counted.sum(axis=0), return_inverse=True)
        few = np.array([bool(rule.refusal(int(n))) for n in numbers], np.bool_)
        self._below_bound[blocks] |= few[block_numbers]

    def tally(self, present: Mask) -> Tally:
        """Return the counts of the updates that are present."""
        self._count()
        sent, accepted = (matrix[present] for matrix in (self._sent & ~self._rejected, self._accepted))
        return Tally(
            received=sent.size,
            sent=int(sent.sum()),
            accepted=int(accepted.sum()) if self._acceptance_known else None,
            accepted_sent=int((accepted & sent).sum()) if self._acceptance_known else None,
            rejected=int(self.not_finite.sum()),
        )

    @property
    def not_finite(self) -> Mask:
        """The blocks that were sent, and rejected because they are not finite."""
        self._count()
        return self._rejected & self._sent

    @property
    def kept_out(self) -> Mask | None:
        """The blocks that were sent and did not enter the result, which are few; None if the rule does not state it."""
        self._count()
        return self._sent & (~self._accepted | self._rejected) if self._acceptance_known else None

    @property
    def blocks_below_bound(self) -> int:
        """The number of blocks that too few updates had for the bound of the rule to hold."""
        self._count()
        return int(self._below_bound.sum())


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
