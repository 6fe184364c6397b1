"""The data of the figures that compare methods: curves, throughput, traffic and computing time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from hpcps.errors import RunError
from hpcps.figures.curve import Curve, Range
from hpcps.figures.curve import curve as curve_of
from hpcps.figures.figure_data import FigureData, describe, text
from hpcps.figures.from_table import figure_data_of
from hpcps.figures.labels import SEPARATOR, of_key, of_value
from hpcps.records.totals import TOTALS

_METHOD, _PANEL = "method", "panel"


@dataclass(frozen=True)
class Comparison:
    """The methods of one variant of one or several experiments.

    Attributes:
        figure_data: the curves by panel, a line per method; that of `STANDALONE` is horizontal: its final accuracy.
        rates: the rates of each method by panel.
    """

    figure_data: FigureData
    rates: Mapping[str, tuple[Rates, ...]]


def comparisons_of(frames: Sequence[tuple[pd.DataFrame, pd.DataFrame | None]]) -> list[Comparison]:
    """Convert tables of `hpcps collect` or `hpcps import` to a comparison of each variant.

    A line is a method, and a panel is a combination of the swept keys that are no part of a method, such as
    `data.split`. Experiments that have the same method in the same panel have separate panels.

    Args:
        frames: the table of each experiment, with that of its baseline if there is one.

    Raises:
        RunError: a table has no evaluations, or it was collected by a version without `totals` rows.
    """
    tables = [_with_methods(frame) for frame, _ in frames]
    if _overlap(tables):
        tables = [_with_name(table) for table in tables]
    bases = {panel: base for table, (_, base) in zip(tables, frames, strict=True) for panel in table[_PANEL].unique()}
    table = pd.concat(tables, ignore_index=True) if len(tables) > 1 else tables[0]
    name = " and ".join(dict.fromkeys(str(frame.attrs.get("experiment")) for frame, _ in frames))
    missing = [point for each in tables for point in each.attrs["missing"]]
    table.attrs.update({"experiment": name, "swept": [_METHOD, _PANEL], "missing": missing})
    found = []
    # Methods of different panels cannot be compared, even if each method is in one panel only.
    for shown in figure_data_of(table, merge_tied=False):
        rows = table[table["variant"].astype(str) == shown.variant]
        lost = pd.DataFrame([point for point in missing if point.get("variant") == shown.variant], dtype=object)
        trained = rows[(rows["event"] == "evaluation") & (rows[_METHOD] != STANDALONE)]
        facts = describe(trained, lost, _epochs(rows)) if len(trained) else shown.facts
        named = replace(shown, experiment=name, panel_keys=(), facts=facts)
        found.append(Comparison(_with_standalone(named, bases), _rates(rows, named)))
    return found


def _overlap(tables: Sequence[pd.DataFrame]) -> bool:
    """Return whether two tables have the same method in the same panel; baselines do not count."""
    pairs = [
        {*zip(table[_PANEL], table[_METHOD], strict=True)} for table in (t[t[_METHOD] != STANDALONE] for t in tables)
    ]
    return sum(map(len, pairs)) > len(set[Any]().union(*pairs))


def _with_name(table: pd.DataFrame) -> pd.DataFrame:
    """Return a table whose panels begin with the name of its experiment."""
    name = str(table.attrs.get("experiment"))

    def named(panel: str) -> str:
        return SEPARATOR.join(filter(None, [name, panel]))

    made = table.assign(panel=[named(panel) for panel in table[_PANEL]])
    made.attrs["missing"] = [point | {_PANEL: named(point[_PANEL])} for point in table.attrs["missing"]]
    return made


def _with_methods(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table with the method and the panel of each row."""
    lacking = [key for key in SETTINGS if key not in frame]
    if lacking or not (frame["event"] == TOTALS).any():
        raise RunError(
            f"the table of {frame.attrs.get('experiment')} is from a version of hpcps that did not sum the times of "
            "each process: collect its runs again with `hpcps collect`"
        )
    swept = [str(key) for key in frame.attrs.get("swept", [])]
    outside = [str(key) for keys in frame.attrs.get("outside", {}).values() for key in keys]
    runs = frame.drop_duplicates("run_id").set_index("run_id")
    missing = pd.DataFrame(frame.attrs.get("missing", []), dtype=object)
    if len(missing):
        missing = missing.set_index("run_id")
        runs = pd.concat([runs, missing.loc[missing.index.difference(runs.index)]])
    settings = runs.astype(object).to_dict("records")
    named = [panel_of(run, swept) for run in settings]
    panels = dict(zip(runs.index, named, strict=True))
    methods = dict(zip(runs.index, name_methods(settings, named, [*swept, *outside]), strict=True))
    ids = frame["run_id"].astype(object)
    made = frame.assign(outside="", method=ids.map(methods), panel=ids.map(panels))
    if "epoch" not in made:
        made["epoch"] = made["round"]  # the logs of other systems do not count epochs
    made.attrs["missing"] = [
        dict(point) | {_METHOD: methods[point["run_id"]], _PANEL: panels[point["run_id"]], "outside": ""}
        for point in frame.attrs.get("missing", [])
    ]
    return made


def _with_standalone(shown: FigureData, bases: Mapping[str, pd.DataFrame | None]) -> FigureData:
    """Make the curve of standalone training horizontal.

    A panel without one has that of the baseline of its experiment, or else the only one of the other panels.
    """
    end = max((np.max(curve.wall, initial=0.0) for curve in shown.curves if curve.line != STANDALONE), default=0.0)
    found = {panel: c for panel, curves in shown.panels.items() for c in curves if c.line == STANDALONE}
    for panel in shown.panels:
        base = bases.get(panel)
        evaluations = None if base is None else base[base["event"] == "evaluation"]
        if panel not in found and evaluations is not None and len(evaluations):
            found[panel] = curve_of(STANDALONE, evaluations)
    flat = {panel: _flat(curve, float(end) or 1.0) for panel, curve in found.items() if curve.epoch.size}
    only = next(iter(flat.values())) if len(flat) == 1 else None
    panels = {}
    for panel, curves in shown.panels.items():
        line = flat.get(panel, only)
        panels[panel] = (*(c for c in curves if c.line != STANDALONE), *([line] if line else []))
    lines = [line for line in shown.lines if line != STANDALONE]
    return replace(shown, panels=panels, lines=(*lines, *([STANDALONE] if flat else [])))


def _flat(curve: Curve, end: float) -> Curve:
    def last(values: Any) -> Any:
        return np.repeat(values[..., -1:], 2, axis=-1)

    accuracy = Range(*(last(part) for part in (curve.accuracy.seeds, *_parts(curve.accuracy))))
    wall = np.array([0.0, end])
    return replace(
        curve, epoch=last(curve.epoch), wall=wall, bytes_sent=last(curve.bytes_sent), accuracy=accuracy,
        acceptance={}, diverged=None, stalled_seeds=0,
    )  # fmt: skip


def _parts(values: Range) -> tuple[Any, Any, Any]:
    return values.mean, values.low, values.high


def _epochs(rows: pd.DataFrame) -> str:
    """Return the epochs and samples of each method, such as `ESync 140 epochs (197k samples) · SSGD 20 (28k)`.

    Two experiments may share a run, such as the single-process baseline.
    """
    found: list[str] = []
    for method, own in rows.groupby(_METHOD, sort=False, observed=True):
        epochs = "/".join(text(number) for number in dict.fromkeys(own["epochs"].astype(object)))
        totals = own[own["event"] == TOTALS]
        trained = totals[totals["role"] == ("validator" if method == STANDALONE else "worker")]
        samples = trained.groupby(["experiment", "run_id"], observed=True)["samples"].sum().mean()
        words = ("", "") if found else (" epochs", " samples")
        found.append(f"{method} {epochs}{words[0]} ({_thousands(samples)}{words[1]})")
    return SEPARATOR.join(found)


def _thousands(number: float) -> str:
    return f"{number / 1000:,.0f}k" if number >= 10_000 else f"{number:,.0f}"


def _rates(rows: pd.DataFrame, shown: FigureData) -> dict[str, tuple[Rates, ...]]:
    totals = rows[rows["event"] == TOTALS]
    found = {}
    for panel, curves in shown.panels.items():
        lines = []
        for curve in curves:
            own = totals[(totals[_PANEL] == panel) & (totals[_METHOD] == curve.line)]
            lines.append(rates(curve.line, own, curve.diverged_seeds))
        found[panel] = tuple(line for line in lines if line is not None)
    return {panel: lines for panel, lines in found.items() if lines}


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
        device, kind = row.get("source"), row.get("class")
        number = str(int(row["index"])) + (f" {kind}" if isinstance(kind, str) else "")
        names.append(device if isinstance(device, str) else number)
    return names


STANDALONE = "standalone"
"""The method of the single-process baseline."""

SETTINGS = ("mode", "train.local_steps", "rule", "workers")
"""The columns from which a method gets its name."""

_ASYNCHRONOUS = {"naive_async": "ASGD", "dc_asgd": "DC-ASGD", "fed_async": "FedAsync"}
_POLICIES = {"esync": "ESync", "dylu": "DyLU"}

_COLUMNS = ("mode", "rule", "epochs", "participation", "skip_rate", "simulation.query")
_TABLES = ("train.", "validation.", "asynchronous.", "communication.", "transport.")


def compares_methods(frame: pd.DataFrame) -> bool:
    """Return whether the experiment of a table sweeps the mode of training or its local steps, and has totals."""
    swept = {"mode", "train.local_steps"}.intersection(frame.attrs.get("swept", []))
    return bool(swept) and bool((frame["event"] == TOTALS).any())


def part_of_method(key: str) -> bool:
    """Return whether a swept column belongs to the method; others, such as `data.split`, are panels of a figure."""
    return key in _COLUMNS or key.startswith(_TABLES)


def method_of(mode: str, local_steps: str, rule: str, workers: float) -> str:
    """Return the name of a method: `SSGD`, `ASGD`, `DC-ASGD`, `ESync`, `local SGD, 4 steps`.

    Args:
        mode: `train.mode`.
        local_steps: the text of `train.local_steps`: a number, or a policy and its keys.
        rule: the text of `validation.rule`.
        workers: the number of workers; without workers, it is `STANDALONE`.
    """
    if not workers:
        return STANDALONE
    kind, policy = rule.split(" ")[0], local_steps.split(" ")[0]
    if mode == "async":
        name, usual = _ASYNCHRONOUS.get(kind, kind), True
    elif policy in _POLICIES or mode in _POLICIES:
        name, usual = _POLICIES[policy if policy in _POLICIES else mode], kind == "average"
        policy = "1"
    else:
        name, usual = "SSGD" if policy == "1" else "local SGD", kind == "average"
    return ", ".join([name, *([f"{policy} steps"] if policy != "1" else []), *([] if usual else [of_value(kind)])])


def name_methods(runs: Sequence[Mapping[Any, Any]], panels: Sequence[str], swept: Sequence[str]) -> list[str]:
    """Return the name of the method of each run; it has the values in which runs of one panel and method differ.

    Args:
        runs: the columns of each run, among them `SETTINGS` and those swept.
        panels: the panel of each run.
        swept: the swept columns.
    """
    keys = [key for key in swept if part_of_method(key)]
    words = [{key: text(run.get(key)) for key in keys} for run in runs]
    names = []
    for run in runs:
        mode, steps, rule = (text(run[key]) for key in SETTINGS[:3])
        names.append(method_of(mode, steps, rule, float(run["workers"])))
    seen: dict[tuple[str, str, str], set[str]] = {}
    for name, panel, values in zip(names, panels, words, strict=True):
        for key, value in values.items():
            seen.setdefault((name, panel, key), set()).add(value)
    varying = {(name, key) for (name, _, key), values in seen.items() if len(values) > 1 and name != STANDALONE}
    return [
        ", ".join([name, *(_difference(key, value) for key, value in values.items() if (name, key) in varying)])
        for name, values in zip(names, words, strict=True)
    ]


def _difference(key: str, value: str) -> str:
    return of_value(value) if key == "rule" else f"{of_key(key)} {of_value(value)}"


def panel_of(settings: Mapping[Any, Any], swept: Sequence[str]) -> str:
    """Return the panel of a run: the values of the swept columns that are no part of a method, such as `split: iid`."""
    keys = [key for key in swept if key != "seed" and not part_of_method(key) and key in settings]
    return SEPARATOR.join(f"{of_key(key)}: {of_value(text(settings[key]))}" for key in keys)
