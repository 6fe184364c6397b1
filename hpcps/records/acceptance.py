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

MEANING = "accepted: of the (update, block) pairs sent, from the start of the run to its latest evaluation"

RUN_TOTALS = ("sent_pairs_total", "accepted_sent_pairs_total", "rounds_total", "empty_rounds_total")
"""The columns of an evaluation's row in a table from which the acceptance follows."""

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
    def of_totals(cls, totals: Mapping[Any, Any]) -> RunAcceptance:
        """Make it from the totals in the row of an evaluation, `RUN_TOTALS`."""
        return cls.of(*(finite(totals.get(name), np.nan) for name in RUN_TOTALS))


NOTHING = RunAcceptance()


def stalled(rounds: Any, empty: Any) -> Any:
    """Return whether a run is stalled, from its rounds with updates and the empty ones among them; works on arrays."""
    return 2 * empty > rounds


FIELDS = ("time", "round", "participants", "received_pairs", "sent_pairs", "accepted_sent_pairs", "turned_pairs")
"""The fields of a line of a validator or server from which its rounds are counted. Accepted and negated (`turned`)
pairs change the model; a negated pair is not accepted."""


class RoundCounts:
    """The rounds of a run in which a rule received updates, counted from the lines of all validators or servers.

    `collect` has the lines in a table, the status of a run as they are written; both count here.
    """

    def __init__(self, lines: Mapping[str, Values], workers: int = 0) -> None:
        """Take the lines.

        Args:
            lines: an array with an item for each line, for each of `FIELDS`: `participants` is the number of updates
                that were received. A field that a line does not have is NaN; so are accepted pairs that are unknown,
                and a round with such a line counts as one in which some were applied.
            workers: as many updates count as one round of an asynchronous run, in order of time; 0: lines with the same
                `round` are one round.
        """
        self._position = np.nan_to_num(lines["time" if workers else "round"], nan=-1.0)
        received = np.nan_to_num(lines["received_pairs"])
        self._sent = np.nan_to_num(lines["sent_pairs"])
        accepted = lines["accepted_sent_pairs"]
        self._accepted = np.where(received > 0, accepted, np.nan_to_num(accepted))
        order = np.argsort(self._position, kind="stable")
        order = order[received[order] > 0]
        position, applied = self._position[order], (self._accepted + np.nan_to_num(lines["turned_pairs"]))[order]
        number = np.nan_to_num(lines["round"])[order]
        if workers:
            number = (np.cumsum(np.nan_to_num(lines["participants"])[order]) - 1) // workers
        rounds, place = np.unique(number, return_inverse=True)
        ends = np.full(len(rounds), -np.inf)
        np.maximum.at(ends, place, position)
        empty = np.bincount(place, applied, len(rounds)) == 0
        self._ends, self._empty_ends = np.sort(ends), np.sort(ends[empty])

    def before(self, positions: Any) -> tuple[Any, Any]:
        """Return how many rounds ended before a position (a round, or a time), and how many of them were empty."""
        return tuple(np.searchsorted(each, positions, side="left") for each in (self._ends, self._empty_ends))

    def acceptance(self, position: float) -> RunAcceptance:
        """Return what the rule did with the updates before a position."""
        known = self._position < position
        sums = (each[known].sum() for each in (self._sent, self._accepted))
        return RunAcceptance.of(*map(float, (*sums, *self.before(position))))
