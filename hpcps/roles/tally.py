"""Counts of accepted and rejected blocks of updates."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from hpcps.numerics.state import State


@dataclass
class Tally:
    """Counts of (update, block) pairs over some rounds; `turned` counts negated pairs.

    `accepted` and `accepted_sent` are None if the rule did not state them in one of the rounds.
    """

    received: int = 0
    sent: int = 0
    accepted: int | None = 0
    accepted_sent: int | None = 0
    rejected: int = 0
    turned: int = 0

    def add(self, other: Tally) -> None:
        """Add another tally's counts to this one's."""
        self.received += other.received
        self.sent += other.sent
        self.accepted = _sum(self.accepted, other.accepted)
        self.accepted_sent = _sum(self.accepted_sent, other.accepted_sent)
        self.rejected += other.rejected
        self.turned += other.turned

    def state(self) -> State:
        """Return the counts, for a checkpoint."""
        return State(facts=asdict(self))

    @staticmethod
    def restored(state: State) -> Tally:
        """Return the tally that had this state."""
        return Tally(**state.facts)

    @property
    def acceptance_rate(self) -> float | None:
        """Accepted pairs divided by received pairs, with skipped blocks; None without updates, or if unknown."""
        return _share(self.accepted, self.received)

    @property
    def acceptance_rate_sent(self) -> float | None:
        """Accepted pairs divided by sent and finite pairs; None if there is none, or if unknown."""
        return _share(self.accepted_sent, self.sent)


def _sum(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else one + other


def _share(accepted: int | None, of: int) -> float | None:
    return accepted / of if of and accepted is not None else None
