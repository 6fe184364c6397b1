"""One line of a figure, such as the runs of one rule under one attack: its curve, and its applied updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpcps.records.table import CALLBACKS, CLASSES, numbers

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
    """Percentages over the epochs.

    Attributes:
        seeds: the values of each seed: `[seeds, epochs]`; NaN means that a seed has no value.
        mean: their mean: `[epochs]`.
        low: the lowest: `[epochs]`.
        high: the highest: `[epochs]`.
    """

    seeds: Values
    mean: Values
    low: Values
    high: Values

    @staticmethod
    def of(values: Values) -> Range:
        """Compute it from the values of each seed, `[seeds, epochs]`."""
        known = np.ma.masked_invalid(values)
        return Range(
            values, *(part.filled(np.nan) for part in (known.mean(axis=0), known.min(axis=0), known.max(axis=0)))
        )


@dataclass(frozen=True)
class Curve:
    """Test accuracy over the epochs of one line of one panel; over several seeds, their mean and range.

    A curve has only epochs that every seed has reached. Arrays are `[epochs]`; the seeds are in ascending order.

    Attributes:
        line: the name of the line.
        wall: seconds since the run's start.
        bytes_sent: bytes sent by all roles.
        accuracy: percent.
        perplexity: of runs on text; None for other data.
        link_bytes: bytes of the busiest process, `[seeds, epochs]`, if the rows have them (see
            `hpcps.figures.traffic`); otherwise empty.
        work_seconds: likewise the CPU seconds, one after another, of the slowest process of each role.
        acceptance: accepted (update, block) pairs in percent of those received (including skipped blocks) or of those
            sent, since the previous evaluation or since the start, over all validators; empty under a rule without a
            reference. Under `zeno++` a negated pair is not accepted.
        seeds: the number of runs.
        diverged: the position of the first evaluation of a diverged model, if any seed has diverged.
        diverged_seeds: the number of diverged seeds; the mean includes them.
        finished: whether all its runs are done.
        stalled_seeds: the number of stalled seeds: in most rounds the rule accepted no update. The mean includes them.
        left_out: the number of seeds that are not finished, if others are.
        callbacks: the values of callbacks by name.
        accepted: percent of the pairs sent since the start that any rule accepted, at the last epoch; None if unknown.
    """

    line: str
    epoch: Values
    wall: Values
    bytes_sent: Values
    accuracy: Range
    acceptance: Mapping[tuple[Among, Since], Range]
    seeds: int
    diverged: int | None
    diverged_seeds: int
    finished: bool
    stalled_seeds: int = 0
    left_out: int = 0
    accepted: float | None = None
    callbacks: Mapping[str, Range] = field(default_factory=dict)
    perplexity: Range | None = None
    link_bytes: Values = field(default_factory=lambda: np.empty(0))
    work_seconds: Values = field(default_factory=lambda: np.empty(0))

    @property
    def share_diverged(self) -> str:
        """The number of diverged seeds, such as `1 of 3`; empty if there is none, or only one seed."""
        return f"{self.diverged_seeds} of {self.seeds}" if self.diverged_seeds and self.seeds > 1 else ""

    @property
    def unfinished_seeds(self) -> int:
        """The number of seeds with an evaluation that are not finished."""
        return self.left_out + (0 if self.finished or self.left_out else self.seeds)

    @property
    def share_stalled(self) -> str:
        """The number of stalled seeds; empty if there is none, or only one seed."""
        return f"{self.stalled_seeds} of {self.seeds}" if self.stalled_seeds and self.seeds > 1 else ""


def curve(line: str, rows: pd.DataFrame) -> Curve:
    """Make the curve of some runs' evaluations.

    A mean over seeds ends where the shortest run does, so runs that are not finished count only if no run is.
    """
    begun, done = rows["run_id"].nunique(), rows["status"] == "done"
    rows = rows[done] if done.any() else rows
    order = ["seed", "run_id"] if "seed" in rows else ["run_id"]
    runs = [run.sort_values("epoch").set_index("epoch") for _, run in rows.groupby(order, observed=True, dropna=False)]
    common = runs[0].index
    for run in runs[1:]:
        common = common.intersection(run.index)
    common = common.sort_values()

    def of_runs(column: str) -> Values:
        return np.array([run.loc[common, column].to_numpy(np.float64) for run in runs])

    broken = of_runs("diverged") > 0
    diverged = np.flatnonzero(broken.any(axis=0))
    scores = "scores" in rows and bool(rows["scores"].all()) and "received_pairs_total" in rows
    acceptance = {(among, since): _acceptance(runs, common, among, since) for among in AMONG for since in SINCE}
    # Rates that are unknown at the last evaluation are not shown at all.
    some = scores and all(np.isfinite(acceptance[among, "start"].mean[-1:]).any() for among in AMONG)
    shares = acceptance["sent", "start"].mean[-1:]
    return Curve(
        line=line,
        epoch=common.to_numpy(np.float64),
        wall=of_runs("wall").mean(axis=0),
        bytes_sent=of_runs("bytes_sent_total").mean(axis=0),
        accuracy=Range.of(100 * of_runs("accuracy")),
        acceptance=acceptance if some else {},
        seeds=len(runs),
        diverged=int(diverged[0]) if diverged.size else None,
        diverged_seeds=int(broken.any(axis=1).sum()),
        finished=bool((rows["status"] == "done").all()),
        stalled_seeds=int((of_runs("stalled")[:, -1:] > 0).sum()) if "stalled" in rows else 0,
        left_out=begun - len(runs),
        callbacks={
            name.removeprefix(CALLBACKS): Range.of(of_runs(name))
            for name in map(str, rows.columns)
            if name.startswith(CALLBACKS) and np.isfinite(numbers(rows, name)).any()
        },
        accepted=float(shares[0]) if np.isfinite(shares).any() else None,
        perplexity=Range.of(of_runs("perplexity"))
        if "perplexity" in rows and rows["perplexity"].notna().all()
        else None,
        link_bytes=of_runs("link_bytes") if "link_bytes" in rows else np.empty(0),
        work_seconds=of_runs("work_seconds") if "work_seconds" in rows else np.empty(0),
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


@dataclass(frozen=True)
class AppliedUpdates:
    """The applied updates of one line of one panel; over several seeds, their mean and range.

    Attributes:
        line: the name of the line.
        staleness: 0, 1, … up to the largest value: `[n]`.
        share: percent of the applied updates with that staleness: `[n]`.
        workers: the workers' indices: `[w]`.
        updates: applied updates of each worker: `[w]`.
        mean: the mean staleness.
        seeds: the number of runs.
    """

    line: str
    staleness: Values
    share: Range
    workers: Values
    updates: Range
    mean: float
    seeds: int


def applied(line: str, rows: pd.DataFrame) -> AppliedUpdates:
    """Sum up the `updates` rows of some runs: a row per run, worker and staleness, with its `count`."""
    workers = np.arange(int(rows["workers"].max()))
    numbers = rows["reader"].astype(str).str.rpartition("-")[2].astype(int)
    stale = rows["staleness"].astype(int)
    shape = rows["run_id"].nunique(), int(stale.max()) + 1, len(workers)
    counts = np.zeros(shape)
    run = pd.factorize(rows["run_id"].astype(str))[0]
    np.add.at(counts, (run, stale.to_numpy(), numbers.to_numpy()), rows["count"].to_numpy(np.float64))
    by_staleness = counts.sum(axis=2)
    share = by_staleness / by_staleness.sum(axis=1, keepdims=True)
    return AppliedUpdates(
        line=line,
        staleness=np.arange(shape[1], dtype=np.float64),
        share=Range.of(100 * share),
        workers=workers.astype(np.float64),
        updates=Range.of(counts.sum(axis=1)),
        mean=float((share @ np.arange(shape[1])).mean()),
        seeds=shape[0],
    )


@dataclass(frozen=True)
class ClassAccuracy:
    """The accuracy of each class at the end of one line of one panel; over several seeds, their mean and range.

    Attributes:
        line: the name of the line.
        classes: the numbers of the classes: `[c]`.
        accuracy: percent of the test samples of each class: `[c]`.
        seeds: the number of runs.
    """

    line: str
    classes: Values
    accuracy: Range
    seeds: int


def class_accuracies(line: str, rows: pd.DataFrame) -> ClassAccuracy | None:
    """Take the accuracy of each class from the last evaluations of the finished runs; None if no run has them."""
    columns = {name: name.removeprefix(CLASSES) for name in map(str, rows.columns) if name.startswith(CLASSES)}
    names = sorted(
        (name for name, number in columns.items() if number.isdecimal()), key=lambda name: int(columns[name])
    )
    last = rows[rows["status"] == "done"].sort_values("epoch").groupby("run_id", observed=True).tail(1)
    values = np.array([numbers(last, name) for name in names]).reshape(len(names), len(last)).T
    values, there = values[np.isfinite(values).any(axis=1)], np.isfinite(values).any(axis=0)
    if not len(values):
        return None
    known = np.array([float(columns[name]) for name in names])[there]
    return ClassAccuracy(line, known, Range.of(100 * values[:, there]), len(values))
