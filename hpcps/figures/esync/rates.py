"""The throughput, the traffic and the computing time of runs, from the totals of their processes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from hpcps.figures.curve import Range


@dataclass(frozen=True)
class Rates:
    """The rates of one method in one panel; over several seeds, their mean and range.

    Attributes:
        line: the name of the method.
        throughput: samples of all workers per second, `[1]`.
        traffic: bytes that the workers send per second, `[1]`; NaN if they are not known.
        computing: percent of the time that each worker computes, `[workers]`.
        step_ratio: the mean step of the slowest worker divided by that of the fastest, as measured, `[1]`; NaN if they
            are not known.
        samples: the samples of all workers; the mean of the seeds.
        workers: the names of the workers.
        seeds: the number of runs.
        diverged_seeds: the number of diverged seeds; the mean includes them.
    """

    line: str
    throughput: Range
    traffic: Range
    computing: Range
    step_ratio: Range
    samples: float
    workers: tuple[str, ...]
    seeds: int
    diverged_seeds: int = 0


def rates(line: str, rows: pd.DataFrame, diverged: int = 0) -> Rates | None:
    """Sum up the `totals` rows of some runs; None if they have no workers.

    The time of a run is that of the worker that ends last: it includes evaluations only as far as workers wait for
    them. A worker computes in its local steps, pauses that slow it down included; it does not compute while it
    exchanges messages, waits, packs an update or adopts a model.
    """
    workers = rows[rows["role"] == "worker"].sort_values("index", kind="stable")
    if workers.empty:
        return None
    runs = [own.set_index("index") for _, own in workers.groupby("run_id", observed=True)]
    elapsed = [float(run["time"].max()) for run in runs]
    names = dict(zip(workers["index"].astype(int), _names(workers), strict=True))

    def per_second(column: str) -> Range:
        sums = [run[column].sum(min_count=1) if column in run else np.nan for run in runs]
        return Range.of(np.array([[total / seconds] for total, seconds in zip(sums, elapsed, strict=True)], np.float64))

    steps = [run.get("step_seconds", pd.Series(np.nan, run.index)) for run in runs]
    shares = [(run["compute"] / run["time"]).reindex(list(names)) for run in runs]
    return Rates(
        line=line,
        throughput=per_second("samples"),
        traffic=per_second("bytes_sent"),
        computing=Range.of(100 * np.array(shares, np.float64)),
        step_ratio=Range.of(np.array([[each.max(skipna=False) / each.min()] for each in steps], np.float64)),
        samples=float(np.mean([run["samples"].sum() for run in runs])),
        workers=tuple(names.values()),
        seeds=len(runs),
        diverged_seeds=diverged,
    )


def _names(workers: pd.DataFrame) -> list[str]:
    """Return the name of the worker of each row: its device in the logs of another system, or its number and class."""
    names = []
    for row in workers.to_dict("records"):
        device, kind = row.get("device"), row.get("class")
        number = str(int(row["index"])) + (f" {kind}" if isinstance(kind, str) else "")
        names.append(device if isinstance(device, str) else number)
    return names
