"""What a figure of an experiment shows: which swept keys make its panels and lines, and the curves themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hpcps.errors import RunError

Values = NDArray[np.float64]

REDUCED_BY = ("data.limit", "data.test_limit", "train.epochs", "topology.workers")
"""Keys that, set otherwise than in the experiment file, make a run a reduced one."""


@dataclass(frozen=True)
class Curve:
    """Test accuracy over the epochs of one line of one panel; over several seeds, their mean and range.

    Only epochs that every seed has reached count. Arrays are `[epochs]`.

    Attributes:
        line: what the line stands for.
        wall: seconds since the run's start.
        bytes_sent: bytes sent by all roles.
        accuracy: percent; `low` and `high` are the lowest and highest seed's.
        seeds: how many runs it is made of.
        diverged: the position of the first evaluation of a diverged model, if any seed has diverged.
        finished: whether all its runs are done.
    """

    line: str
    epoch: Values
    wall: Values
    bytes_sent: Values
    accuracy: Values
    low: Values
    high: Values
    seeds: int
    diverged: int | None
    finished: bool


@dataclass(frozen=True)
class Sheet:
    """The curves of one variant of an experiment.

    Attributes:
        line_key: the swept column that makes the lines; empty if nothing is swept.
        panel_keys: the swept columns that make the panels.
        lines: what lines there are, in the order of the sweep.
        panels: curves by panel, in the order of the sweep.
        variant: what the runs have that their file does not; empty if nothing.
        facts: what ran, in words.
    """

    experiment: str
    line_key: str
    panel_keys: tuple[str, ...]
    lines: tuple[str, ...]
    panels: dict[str, tuple[Curve, ...]]
    variant: str
    facts: str

    @property
    def remark(self) -> str:
        """How the runs differ from their file: `"reduced: data.limit=5000"`; empty if they do not."""
        if not self.variant:
            return ""
        reduced = any(item.startswith(f"{key}=") for item in self.variant.split(" ") for key in REDUCED_BY)
        return f"{'reduced' if reduced else 'changed'}: {self.variant}"


def sheets(frame: pd.DataFrame) -> list[Sheet]:
    """Turn the table of `hpcps collect` into a sheet for each variant, in order of appearance.

    The rule makes the lines and everything else that is swept the panels; without a swept rule, the first swept key
    that is not the attack makes the lines. Seeds are averaged.

    Raises:
        RunError: the table has no evaluations.
    """
    evaluations = frame[frame["event"] == "evaluation"]
    if evaluations.empty:
        raise RunError("no evaluation in this table yet: wait for the first epoch to end, then collect again")
    swept = [key for key in frame.attrs.get("swept", []) if key != "seed"]
    candidates = [key for key in swept if key == "rule"] + [key for key in swept if key != "attack"] + swept
    line_key = candidates[0] if candidates else ""
    panel_keys = tuple(key for key in swept if key != line_key)
    return [_sheet(rows, line_key, panel_keys, variant) for variant, rows in _groups(evaluations, ("variant",))]


def text(value: Any) -> str:
    """Put a swept value into words."""
    if isinstance(value, float):
        return "none" if np.isnan(value) else f"{value:g}"
    return "none" if value is None else str(value)


def _sheet(rows: pd.DataFrame, line_key: str, panel_keys: tuple[str, ...], variant: str) -> Sheet:
    panels: dict[str, tuple[Curve, ...]] = {}
    for panel, inside in _groups(rows, panel_keys):
        panels[panel] = tuple(_curve(line, runs) for line, runs in _groups(inside, (line_key,) if line_key else ()))
    lines = dict.fromkeys(line for line, _ in _groups(rows, (line_key,) if line_key else ()))
    experiment = text(rows["experiment"].iloc[0])
    return Sheet(experiment, line_key, panel_keys, tuple(lines), panels, variant, _facts(rows))


def _groups(rows: pd.DataFrame, keys: tuple[str, ...]) -> Iterator[tuple[str, pd.DataFrame]]:
    """Split rows by the values of some columns, in order of appearance, each part with the values in words."""
    if not keys:
        yield "", rows
        return
    words = rows[list(keys)].astype(object).apply(lambda row: " · ".join(text(value) for value in row), axis=1)
    for word in words.unique():
        yield word, rows[words == word]


def _curve(line: str, rows: pd.DataFrame) -> Curve:
    runs = [run.set_index("epoch") for _, run in rows.groupby("run_id", observed=True)]
    common = runs[0].index
    for run in runs[1:]:
        common = common.intersection(run.index)
    common = common.sort_values()

    def of_runs(column: str) -> Values:
        return np.array([run.loc[common, column].to_numpy(np.float64) for run in runs])

    accuracy = 100 * of_runs("accuracy")
    diverged = np.flatnonzero(of_runs("diverged").any(axis=0))
    return Curve(
        line=line,
        epoch=common.to_numpy(np.float64),
        wall=of_runs("wall").mean(axis=0),
        bytes_sent=of_runs("bytes_sent_total").mean(axis=0),
        accuracy=accuracy.mean(axis=0),
        low=accuracy.min(axis=0),
        high=accuracy.max(axis=0),
        seeds=len(runs),
        diverged=int(diverged[0]) if diverged.size else None,
        finished=bool((rows["status"] == "done").all()),
    )


def _facts(rows: pd.DataFrame) -> str:
    """Say what ran: data, processes, epochs, preset, seeds, and what is missing."""

    def values(column: str) -> list[Any]:
        return list(dict.fromkeys(rows[column].astype(object)))

    def counted(column: str) -> str:
        numbers = values(column)
        noun = column[:-1] if numbers == [1] else column
        return f"{'/'.join(text(number) for number in numbers)} {noun}"

    seeds = values("seed")
    unfinished = rows.loc[rows["status"] != "done", "run_id"].nunique()
    facts = [
        "/".join(text(name) for name in values("data")),
        ", ".join(counted(column) for column in ("workers", "validators", "servers")),
        counted("epochs"),
        f"fidelity {'/'.join(text(name) for name in values('fidelity'))}",
        f"seed {text(seeds[0])}" if len(seeds) == 1 else f"{len(seeds)} seeds",
    ]
    if unfinished:
        facts.append(f"{unfinished} of {rows['run_id'].nunique()} runs unfinished")
    return " · ".join(facts)
