"""One line of a figure: the runs of one rule under one attack, say, over their epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

Values = NDArray[np.float64]

Among = Literal["received", "sent"]
Since = Literal["evaluation", "start"]

AMONG: tuple[Among, ...] = ("received", "sent")
SINCE: tuple[Since, ...] = ("evaluation", "start")

_COUNTS: Mapping[Among, tuple[str, str]] = {
    "received": ("accepted_pairs_total", "received_pairs_total"),
    "sent": ("accepted_sent_pairs_total", "sent_pairs_total"),
}


@dataclass(frozen=True)
class Range:
    """Percentages over the epochs: the mean of several seeds, the lowest and the highest; each `[epochs]`."""

    mean: Values
    low: Values
    high: Values

    @staticmethod
    def of(values: Values) -> Range:
        """Make it of one row per seed, `[seeds, epochs]`; a seed whose value is NaN has none there."""
        known = np.ma.masked_invalid(values)
        return Range(*(part.filled(np.nan) for part in (known.mean(axis=0), known.min(axis=0), known.max(axis=0))))


@dataclass(frozen=True)
class Curve:
    """Test accuracy over the epochs of one line of one panel; over several seeds, their mean and range.

    Only epochs that every seed has reached count. Arrays are `[epochs]`.

    Attributes:
        line: what the line stands for.
        wall: seconds since the run's start.
        bytes_sent: bytes sent by all roles.
        accuracy: percent.
        acceptance: accepted (update, block) pairs in percent of those received (skipped blocks count) or of those sent,
            since the evaluation before or since the start, over all validators; empty under a rule that does not score.
            Under `zeno++` a pair that was turned round is not accepted.
        seeds: how many runs it is made of.
        diverged: the position of the first evaluation of a diverged model, if any seed has diverged.
        finished: whether all its runs are done.
    """

    line: str
    epoch: Values
    wall: Values
    bytes_sent: Values
    accuracy: Range
    acceptance: Mapping[tuple[Among, Since], Range]
    seeds: int
    diverged: int | None
    finished: bool


def curve(line: str, rows: pd.DataFrame) -> Curve:
    """Make the curve of some runs' evaluations."""
    runs = [run.sort_values("epoch").set_index("epoch") for _, run in rows.groupby("run_id", observed=True)]
    common = runs[0].index
    for run in runs[1:]:
        common = common.intersection(run.index)
    common = common.sort_values()

    def of_runs(column: str) -> Values:
        return np.array([run.loc[common, column].to_numpy(np.float64) for run in runs])

    diverged = np.flatnonzero(of_runs("diverged").any(axis=0))
    scores = "scores" in rows and bool(rows["scores"].all()) and "received_pairs_total" in rows
    acceptance = {(among, since): _acceptance(runs, common, among, since) for among in AMONG for since in SINCE}
    some = scores and all(np.isfinite(acceptance[among, "start"].mean).any() for among in AMONG)
    return Curve(
        line=line,
        epoch=common.to_numpy(np.float64),
        wall=of_runs("wall").mean(axis=0),
        bytes_sent=of_runs("bytes_sent_total").mean(axis=0),
        accuracy=Range.of(100 * of_runs("accuracy")),
        acceptance=acceptance if some else {},
        seeds=len(runs),
        diverged=int(diverged[0]) if diverged.size else None,
        finished=bool((rows["status"] == "done").all()),
    )


def _acceptance(runs: list[pd.DataFrame], epochs: pd.Index, among: Among, since: Since) -> Range:
    rates = []
    for run in runs:
        counts = [run.get(name, pd.Series(0.0, run.index)).astype(np.float64) for name in _COUNTS[among]]
        if since == "evaluation":
            counts = [count.diff().fillna(count) for count in counts]
        accepted, all_of_them = (count.loc[epochs].to_numpy() for count in counts)
        rates.append(100 * accepted / np.where(all_of_them > 0, all_of_them, np.nan))
    return Range.of(np.array(rates))
