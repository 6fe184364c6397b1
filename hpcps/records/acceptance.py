"""What the rule of a run did with the updates: the share that it accepted, and whether the run stalled.

Lines of a round state pairs: a pair is a block of an update. The pairs of several validators or servers are summed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcps.inputs import finite

Values = NDArray[Any]

APPLIED = ("accepted_sent_pairs", "turned_pairs")
"""The counts of pairs that change the model: a negated pair is not accepted."""

MEANING = "accepted: of the (update, block) pairs sent, from the start of the run to its latest evaluation"

STALLED = "stalled: in most rounds the rule accepted no update"


@dataclass(frozen=True)
class RunAcceptance:
    """What a rule did with the updates before the latest evaluation; before the first one, with all updates.

    Attributes:
        sent: pairs that were sent and finite.
        accepted: those of them that the rule accepted. A skipped or rejected block is a zero update, which some rules
            accept; it does not count. None: unknown, because a synchronous rule did not state it in some round.
        rounds: rounds in which the rule received updates.
        empty: those of them in which no pair changed the model.
    """

    sent: int = 0
    accepted: int | None = 0
    rounds: int = 0
    empty: int = 0

    @property
    def rate(self) -> float | None:
        """Accepted pairs divided by sent pairs, 0 to 1; None without sent pairs, or if unknown."""
        return self.accepted / self.sent if self.sent and self.accepted is not None else None

    @property
    def stalled(self) -> bool:
        """Whether most rounds were empty. The updates of a diverged model are not finite: such a run is not stalled."""
        return bool(stalled(self.rounds, self.empty))

    @property
    def words(self) -> str:
        """What to say of a stalled run."""
        return f"stalled: the rule accepted no update in {self.empty} of {self.rounds} rounds"

    @classmethod
    def of(cls, sent: float, accepted: float, rounds: float, empty: float) -> RunAcceptance:
        """Make it from the counts of a table.

        NaN means 0; but if pairs were sent, NaN as the number of accepted pairs means that it is unknown.
        """
        known = not (np.isnan(accepted) and sent > 0)
        return cls(int(finite(sent)), int(finite(accepted)) if known else None, int(finite(rounds)), int(finite(empty)))

    @classmethod
    def before(cls, position: float, lines: Mapping[str, Values], workers: int = 0) -> RunAcceptance:
        """Count the lines before a position; `lines` are as in `rounds_of`, with `sent` and `accepted` besides."""
        known = lines["position"] < position
        positions, empty = rounds_of(lines, workers)
        sent, accepted = (float(lines[name][known].sum()) for name in ("sent", "accepted"))
        return cls.of(sent, accepted, int((positions < position).sum()), int((empty & (positions < position)).sum()))


NOTHING = RunAcceptance()


def stalled(rounds: Any, empty: Any) -> Any:
    """Return whether a run is stalled, from its rounds with updates and the empty ones among them; works on arrays."""
    return 2 * empty > rounds


def rounds_of(lines: Mapping[str, Values], workers: int = 0) -> tuple[Values, Values]:
    """Return when each round ended in which a rule received updates, in order, and whether none of them was applied.

    Args:
        lines: arrays with an item for each line of a validator or server: `position` (its time or round), `round`,
            `updates` (how many it received), `received` and `applied` (pairs; NaN: unknown, so the round counts as
            applied).
        workers: as many updates count as one round of an asynchronous run, in order of time; 0: lines with the same
            `round` are one round.
    """
    order = np.argsort(lines["position"], kind="stable")
    order = order[lines["received"][order] > 0]
    position, applied = lines["position"][order], lines["applied"][order]
    number = lines["round"][order] if not workers else (np.cumsum(lines["updates"][order]) - 1) // workers
    rounds, place = np.unique(number, return_inverse=True)
    ends = np.full(len(rounds), -np.inf)
    np.maximum.at(ends, place, position)
    return ends, np.bincount(place, applied, len(rounds)) == 0
