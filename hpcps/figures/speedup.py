"""The speed-up by the number of workers: strong and weak scaling, beside the ideal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from hpcps.errors import RunError
from hpcps.figures.curve import Range, Values
from hpcps.figures.figure_data import text
from hpcps.figures.final import aligned_table
from hpcps.figures.labels import of_value, suffixes
from hpcps.figures.options import PlotOptions
from hpcps.figures.page import RC, band, heading_lines, legend
from hpcps.figures.style import looks
from hpcps.records.imported_logs import imported_system
from hpcps.records.table import numbers
from hpcps.records.totals import TOTALS

_AMOUNTS = ("data.shards", "data_limit", "epochs")
"""Swept columns that set the samples of a run: they distinguish strong from weak scaling, not two lines."""

_ROUND = ("compute", "exchange", "wait")
"""The seconds of a round. An evaluation is none of them: it runs beside the next rounds, or the others wait for it."""

_ALIKE = 0.02
"""The share by which samples that count as equal may differ: a shard has a whole number of batches."""

_IDEAL = "#777777"


@dataclass(frozen=True)
class Scaling:
    """The runs of one line with equal samples (strong) or equal samples for each worker (weak).

    Attributes:
        line: the swept values that the runs share; empty if there are no others.
        weak: whether the samples of each worker are equal, and not those of all workers together.
        workers: the numbers of workers, `[n]`, in increasing order.
        samples: the samples of all workers, `[n]`.
        seconds: the time T of each number of workers, over the seeds.
        speedup: strong: T of the fewest workers divided by T, times their number. Weak: that times the ratio of the
            samples. Both are the ratio of the samples per second.
        seeds: the largest number of runs with one number of workers.
    """

    line: str
    weak: bool
    workers: Values
    samples: Values
    seconds: Range
    speedup: Range
    seeds: int


@dataclass(frozen=True)
class Speedup:
    """The scaling of one variant of an experiment.

    Attributes:
        lines: strong scaling, then weak scaling.
        measure: how the time T is determined.
        facts: describes the runs.
    """

    experiment: str
    lines: tuple[Scaling, ...]
    measure: str
    facts: str
    variant: str


def speedups_of(frame: pd.DataFrame) -> list[Speedup]:
    """Return the scaling of each variant of an experiment.

    Args:
        frame: the table of `hpcps collect`.

    Raises:
        RunError: there are no finished runs to compare.
    """
    name = str(frame.attrs.get("experiment"))
    runs = _runs(frame)
    if runs.empty:
        if imported_system(frame):
            raise RunError(
                f"{name} has no logs that show the samples of a step: import two or more steps of each worker"
            )
        raise RunError(f"{name} has no finished runs with workers whose records count samples: run it first")
    if not runs["elapsed"].any():
        raise RunError(f"{name} has no runs that take simulated time: give the simulation costs, such as `step`")
    found = []
    for variant, part in runs.groupby("variant", sort=False, observed=True):
        by_rounds = bool(part["by_rounds"].notna().all())
        part = part.assign(seconds=part["by_rounds" if by_rounds else "elapsed"])
        lines = [
            scaling for line, own in part.groupby(_lines(part, frame), sort=False) for scaling in _scalings(line, own)
        ]
        if lines:
            ordered = tuple(sorted(lines, key=lambda one: one.weak))
            found.append(Speedup(name, ordered, _measure(part, by_rounds), _facts(part), str(variant)))
    if not found:
        amounts = sorted({(int(run["workers"]), int(run["samples"])) for _, run in runs.iterrows()})
        listed = ", ".join(f"{workers}: {samples:,}" for workers, samples in amounts)
        quorum = ". With a quorum, late workers take fewer steps, so samples may differ" if runs["quorum"].any() else ""
        several, each = " (sweep topology.workers)", " (sweep data.shards together with topology.workers)"
        if imported_system(frame):
            several, each = " (import their logs together)", ""
        raise RunError(
            f"{name} has no runs to compare: speed-up needs several numbers of workers{several} with equal samples of "
            f"all workers together, or equal samples of each worker{each}. The samples by the number of workers are "
            f"{listed}{quorum}"
        )
    return found


def _runs(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each finished run: its settings, `samples`, `elapsed` and `by_rounds` (seconds), `quorum`.

    One that was resized has several numbers of workers, and is left out.
    """
    if "resized" in frame:
        frame = frame[frame["resized"].isna()]
    workers = frame[(frame["role"] == "worker") & (frame["status"] == "done")]
    totals = workers[workers["event"] == TOTALS]
    if totals.empty or "samples" not in totals:
        return pd.DataFrame()
    by_run = totals.groupby("run_id", observed=True, sort=False)
    settings = by_run.first().drop(columns=["samples"])
    rounds = workers[workers["event"] == "round"]
    slowest = pd.Series(dtype=np.float64)
    if len(rounds):
        spent = rounds.assign(spent=np.nansum([numbers(rounds, name) for name in _ROUND], axis=0))
        of_rounds = spent.groupby(["run_id", "round"], observed=True)["spent"].max()
        slowest = of_rounds.groupby("run_id", observed=True).sum()
    starts = frame[frame["event"] == "start"].groupby("run_id", observed=True).first()
    # Only the combiners of a run with a quorum record who has arrived. A late worker's line spans several rounds.
    closed = frame["run_id"][frame["arrived"].notna()] if "arrived" in frame else ()
    quorum = settings.index.isin(closed)
    common = (settings["mode"].astype(str) == "sync") & ~quorum
    return settings.assign(
        samples=by_run["samples"].sum(),
        elapsed=by_run["time"].max(),
        transport=starts["transport"].astype(str).reindex(settings.index) if "transport" in starts else "",
        by_rounds=slowest.reindex(settings.index).where(common),
        quorum=quorum,
        variant=settings["variant"].astype(str),
    )


def _lines(runs: pd.DataFrame, frame: pd.DataFrame) -> pd.Series:
    """Return the line of each run: the swept values that do not vary together with workers and samples."""
    swept = list(map(str, frame.attrs.get("swept", ())))
    amounts = ["workers", *(name for name in _AMOUNTS if name in runs and name in swept)]
    keys = []
    for key in swept:
        if key in ("seed", *amounts) or key not in runs:
            continue
        words = runs.assign(**{key: runs[key].astype(object).map(text)})
        if len(words[[*amounts, key]].drop_duplicates()) > len(words[amounts].drop_duplicates()):
            keys.append(key)
    outside = runs["outside"].astype(str) if "outside" in runs else pd.Series("", runs.index)
    parts = [runs[key].astype(object).map(text) for key in keys] + [outside]
    return pd.Series([" · ".join(filter(None, row)) for row in zip(*parts, strict=True)], runs.index)


def _scalings(line: object, runs: pd.DataFrame) -> Iterator[Scaling]:
    """Yield the strong and the weak scaling that begin with the runs of the fewest workers."""
    fewest = runs["workers"].min()
    bases: list[float] = []
    for samples in runs[runs["workers"] == fewest]["samples"]:
        if not any(_equal(samples, base) for base in bases):
            bases.append(float(samples))
    for base in bases:
        for weak in (False, True):
            amounts = runs["samples"] / (runs["workers"] if weak else 1)
            alike = runs[_equal(amounts, base / (fewest if weak else 1))]
            if alike["workers"].nunique() > 1:
                yield _scaling(str(line), alike, weak=weak)


def _equal(samples: Any, other: float) -> Any:
    return abs(samples - other) <= _ALIKE * other


def _scaling(line: str, runs: pd.DataFrame, *, weak: bool) -> Scaling:
    groups = [own for _, own in runs.groupby("workers")]
    seeds = max(map(len, groups))
    workers = np.array([float(own["workers"].iloc[0]) for own in groups])
    samples = np.array([own["samples"].mean() for own in groups])
    seconds = np.full((seeds, len(groups)), np.nan)
    for place, own in enumerate(groups):
        seconds[: len(own), place] = own["seconds"]
    # The mean of the seeds with the fewest workers is the base of all seeds: the band is the spread of T.
    work = samples / samples[0] if weak else np.ones(len(samples))
    speedup = workers[0] * work * np.nanmean(seconds[:, 0]) / seconds
    return Scaling(line, weak, workers, samples, Range.of(seconds), Range.of(speedup), seeds)


def _measure(runs: pd.DataFrame, by_rounds: bool) -> str:
    virtual = "simulation" in runs and runs["simulation"].astype(str).ne("none")
    simulated = "simulated time; " if np.all(virtual) else "partly simulated time; " if np.any(virtual) else ""
    what = (
        "T: sum over the rounds of the slowest worker's seconds"
        if by_rounds
        else "T: seconds from the start of a run to the last round of its last worker"
    )
    what += " (runs with a quorum have no common rounds)" if runs["quorum"].any() else ""
    turns = not np.any(virtual) and runs["transport"].eq("inproc").any()
    return f"{simulated}{what}{'; the roles of a run take turns in one process' if turns else ''}"


def _facts(runs: pd.DataFrame) -> str:
    facts = ["/".join(dict.fromkeys(runs[name].astype(str))) for name in ("model", "data") if name in runs]
    seeds = runs["seed"].nunique()
    return " · ".join([*facts, f"{seeds} seeds" if seeds > 1 else f"seed {text(runs['seed'].iloc[0])}"])


def draw_speedups(shown: Sequence[Speedup], options: PlotOptions) -> Iterator[tuple[str, Figure]]:
    """Yield the name and the figure of each variant."""
    for each, suffix in zip(shown, suffixes([one.variant for one in shown]), strict=True):
        yield f"speedup{suffix}", _draw(each, options)


@mpl.rc_context(RC)
def _draw(shown: Speedup, options: PlotOptions) -> Figure:
    kinds = [weak for weak in (False, True) if any(one.weak == weak for one in shown.lines)]
    width = options.width or 3.3 * len(kinds) + 0.9
    words = [f"{shown.experiment}: speed-up", shown.facts, shown.variant, shown.measure] if options.heading else []
    heading = heading_lines(words, width)
    figure = Figure(figsize=(width, (options.height or 2.9) + 0.5 + 0.16 * len(heading)), layout="constrained")
    if heading:
        figure.suptitle("\n".join(heading), fontsize=9)
    names = list(dict.fromkeys(one.line for one in shown.lines))
    styles = looks(names)
    for axes, weak in zip(figure.subplots(1, len(kinds), squeeze=False, sharey=True)[0], kinds, strict=True):
        lines = [one for one in shown.lines if one.weak == weak]
        ticks = sorted({count for one in lines for count in one.workers})
        axes.plot(ticks, ticks, color=_IDEAL, linestyle="dashed", linewidth=1.0, zorder=1.5)
        for one in lines:
            band(axes, one.workers, one.speedup, styles[one.line], options)
            axes.plot(one.workers, one.speedup.mean, **styles[one.line].options)
        axes.set_title("weak: equal samples per worker" if weak else "strong: equal samples in total")
        axes.set_xlabel("workers")
        for axis, scale in ((axes.xaxis, axes.set_xscale), (axes.yaxis, axes.set_yscale)):
            scale("log", base=2)
            axis.set_major_formatter(mpl.ticker.FormatStrFormatter("%g"))
            axis.set_minor_locator(NullLocator())
        axes.set_xticks(ticks)
        axes.tick_params(labelleft=True)
        axes.set_ylabel("speed-up: n · T₁ / Tₙ" if weak else "speed-up: T₁ / Tₙ")
    handles: list[Artist] = [
        Line2D([], [], label=options.names.get(name) or of_value(name) or "runs", **styles[name].options)
        for name in names
    ]
    handles.append(Line2D([], [], color=_IDEAL, linestyle="dashed", linewidth=1.0, label="ideal"))
    legend(figure, handles)
    return figure


def speedup_table(shown: Speedup) -> str:
    """Return a Markdown table: the time, the speed-up and its share of the ideal by the number of workers."""
    head = ["line", "scaling", "workers", "samples", "T (s)", "speed-up", "of the ideal (%)"]
    rows = [head]
    for one in shown.lines:
        for place, count in enumerate(one.workers):
            efficiency = 100 * one.speedup.mean[place] / count
            rows.append(
                [
                    one.line or "–", "weak" if one.weak else "strong", f"{count:g}", f"{one.samples[place]:,.0f}",
                    _spread(one.seconds, place, ",.4g"), _spread(one.speedup, place, ".2f"), f"{efficiency:.0f}",
                ]
            )  # fmt: skip
    title = "  \n".join(filter(None, [f"**{shown.experiment}**: speed-up", shown.facts, shown.variant, shown.measure]))
    ranges = any("–" in cell.partition(" [")[2] for row in rows[1:] for cell in row[4:6])
    note = "\n[lowest–highest of the seeds]\n" if ranges else ""
    return f"{title}\n\n{aligned_table(rows)}\n{note}"


def _spread(values: Range, place: int, form: str) -> str:
    mean, low, high = (f"{part[place]:{form}}" for part in (values.mean, values.low, values.high))
    return mean if low == high else f"{mean} [{low}–{high}]"
