"""The applied updates of an asynchronous run by staleness and by worker."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from hpcps.figures.curve import Range, Values


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
