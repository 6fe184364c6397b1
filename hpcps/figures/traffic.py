"""What a target costs: bytes that are sent until a test accuracy or perplexity, and the time on links of some rates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter

from hpcps.errors import RunError
from hpcps.figures.curve import Curve, Range, Values
from hpcps.figures.drawing import Measure, draw_accuracy, measured
from hpcps.figures.figure_data import FigureData
from hpcps.figures.final import aligned_table, heading, plain
from hpcps.figures.from_table import figure_data_of
from hpcps.figures.labels import of_panel, suffixes
from hpcps.figures.options import PlotOptions, select
from hpcps.figures.page import LETTER, RC, WIDEST, Page, wrapped
from hpcps.records.table import numbers
from hpcps.records.totals import TOTALS

RATES = np.array([0.1, 1.0, 10.0, 100.0])
"""Gbit/s of the links."""

_MEGABYTE = 1e6
_NARROW = 1.8
"""Inches of a panel that has room for few numbers on a logarithmic axis."""
_SHOWN = 30.0
"""Percent below the target at which the axis of the accuracy begins."""

_DRAWN_RATES = np.geomspace(0.1, 100, 31)

MODEL = (
    "modelled time: CPU seconds of the slowest worker, validator and server, without evaluations, plus the bytes of "
    "the busiest process in one direction divided by the rate; each process has a link of its own, without latency, "
    "and does not compute while it sends"
)


@dataclass(frozen=True)
class Reached:
    """When one line of one panel reached the target; arrays are `[seeds]`, NaN for a seed that did not.

    Between the last evaluation before the target and the first that reaches it, the value is interpolated linearly, so
    that one test sample more or less changes the result a little.

    Attributes:
        sent: bytes sent by all processes.
        link: bytes of the busiest process, sent or received, whichever is more.
        work: CPU seconds one after another: of the slowest worker, validator and server.
    """

    curve: Curve
    sent: Values
    link: Values
    work: Values

    @property
    def share(self) -> str:
        """How many seeds have reached it, such as `2 of 3 seeds`; empty if all have."""
        count = int(np.isfinite(self.sent).sum())
        return "" if count == len(self.sent) else f"{count} of {len(self.sent)} seeds"

    def seconds(self, rates: Values) -> Values:
        """Return the modelled time by rates in Gbit/s: `[seeds, rates]`."""
        return self.work[:, None] + 8 * self.link[:, None] / (1e9 * rates)


@dataclass(frozen=True)
class TargetCost:
    """The lines of one variant and their target.

    Attributes:
        data: the curves.
        measure: what the target is a value of.
        target: percent, or a perplexity.
        panels: when each line reached it, by panel.
    """

    data: FigureData
    measure: Measure
    target: float
    panels: dict[str, tuple[Reached, ...]]

    @property
    def words(self) -> str:
        """The target for people."""
        return f"{self.target:g} % accuracy" if self.measure == "accuracy" else f"perplexity {self.target:g}"


def traffic_of(frame: pd.DataFrame, options: PlotOptions) -> list[TargetCost]:
    """Return the traffic of each variant of an experiment, with the lines and panels that the options choose.

    The target is `options.target`. By default it is the best final accuracy less 5, rounded down to a multiple of 5, or
    for text the best final perplexity plus 5 %. Curves are steep there: near the final accuracy, one test sample
    decides in which epoch a curve reaches the target.

    Args:
        frame: the table of `hpcps collect`.
        options: the options.

    Raises:
        RunError: the table has no evaluations or totals, or the runs have no common rounds.
    """
    found = []
    for data in select(figure_data_of(_with_links(frame)), options):
        curves = [curve for curve in data.curves if curve.epoch.size]
        if not curves:
            continue
        measure: Measure = "perplexity" if all(curve.perplexity for curve in curves) else "accuracy"
        target = options.target or _usual(measure, [measured(curve, measure).mean[-1] for curve in curves])
        panels = {
            panel: tuple(_reached(one, measure, target) for one in (*lines, *data.references) if one.epoch.size)
            for panel, lines in data.panels.items()
            if lines
        }
        found.append(TargetCost(data, measure, target, panels))
    return found


def _usual(measure: Measure, final: Sequence[float]) -> float:
    known = [value for value in final if np.isfinite(value)]
    if measure == "accuracy":
        return max(0.0, 5.0 * (max(known) // 5 - 1))
    return float(f"{1.05 * min(known):.3g}")


def _with_links(frame: pd.DataFrame) -> pd.DataFrame:
    """Add to each evaluation the bytes of the busiest process and the CPU seconds so far.

    Both are those of the whole run, in proportion to the bytes and the epochs so far.
    """
    if "mode" in frame and (frame["mode"] == "async").any():
        raise RunError("`hpcps plot bytes` models synchronous rounds; `hpcps plot` draws asynchronous runs by bytes")
    totals, runs = frame[frame["event"] == TOTALS], frame["run_id"].astype(str)
    if totals.empty or not {"bytes_received", "cpu"} <= set(totals):
        raise RunError("this table has no sums of each process: make it again with `hpcps collect`")
    work = numbers(totals, "cpu") - np.nan_to_num(numbers(totals, "cpu_evaluate"))
    if "device" in totals:  # the processor does little while a GPU computes
        parts = sum(np.nan_to_num(numbers(totals, name)) for name in ("compute", "combine", "exchange"))
        work = np.where(totals["device"].astype(str).str.startswith("cuda"), parts, work)
    busiest = np.maximum(numbers(totals, "bytes_sent"), numbers(totals, "bytes_received"))
    each = pd.DataFrame({"run": runs[totals.index], "role": totals["role"].astype(str), "link": busiest, "work": work})
    link = each.groupby("run")["link"].max()
    seconds = each.groupby(["run", "role"])["work"].max().groupby("run").sum()
    shares = {}
    for name in ("bytes_sent_total", "epoch"):
        values = pd.Series(numbers(frame, name), frame.index).where(frame["event"] == "evaluation")
        shares[name] = values / values.groupby(runs).transform("max")
    return frame.assign(
        link_bytes=runs.map(link) * shares["bytes_sent_total"], work_seconds=runs.map(seconds) * shares["epoch"]
    )


def _reached(curve: Curve, measure: Measure, target: float) -> Reached:
    values = measured(curve, measure).seeds
    reached = values >= target if measure == "accuracy" else values <= target
    first, never, seeds = reached.argmax(axis=1), ~reached.any(axis=1), np.arange(len(values))
    before = np.maximum(first - 1, 0)
    at_first, at_before = values[seeds, first], values[seeds, before]
    known = np.isfinite(at_before) & (at_before != at_first)  # there is an earlier evaluation, of a finite model
    share = np.where(known, (target - at_before) / np.where(known, at_first - at_before, 1.0), 1.0)

    def at(amounts: Values) -> Values:
        of_all = np.broadcast_to(amounts, values.shape)
        crossing = of_all[seeds, before] + share * (of_all[seeds, first] - of_all[seeds, before])
        return np.where(never, np.nan, crossing)

    return Reached(curve, at(curve.bytes_sent), at(curve.link_bytes), at(curve.work_seconds))


def draw_traffic(shown: Sequence[TargetCost], options: PlotOptions) -> Iterator[tuple[str, Figure]]:
    """Yield the names and the figures: the measure by bytes, the bytes to the target, and the modelled time to it."""
    for each, suffix in zip(shown, suffixes([one.data.variant for one in shown]), strict=True):
        yield f"{each.measure}_by_bytes_log{suffix}", _draw_curves(each, options)
        yield f"bytes_to_target{suffix}", _draw_bytes(each, options)
        yield f"modelled_time{suffix}", _draw_times(each, options)


def _draw_curves(cost: TargetCost, options: PlotOptions) -> Figure:
    figure = draw_accuracy(cost.data, "bytes", options, measure=cost.measure)
    narrow = figure.get_figwidth() / len({axes.get_position().x0 for axes in figure.axes}) < _NARROW
    for axes in figure.axes:
        positive = [x for line in axes.lines for x in np.asarray(line.get_xdata(), float) if x > 0]
        axes.set_xscale("log")
        axes.set_xlim(min(positive, default=1.0), None)
        axes.xaxis.set_major_locator(LogLocator(subs=(1,) if narrow else (1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        if cost.measure == "accuracy":
            axes.set_ylim(bottom=max(0.0, cost.target - _SHOWN))
            for line in axes.lines:
                line.set_clip_on(True)
        axes.axhline(cost.target, color="#777777", linewidth=0.8, linestyle="dashed", zorder=1.5)
    return figure


@mpl.rc_context(RC)
def _draw_bytes(cost: TargetCost, options: PlotOptions) -> Figure:
    """Draw a point for each line, with the band of its seeds; a bar has no length on a logarithmic axis."""
    page, places = Page(cost.data, options), {line: place for place, line in enumerate(_lines(cost))}
    title, label = "bytes to the target", f"sent by all processes (MB)\nuntil {cost.words}"
    names = [page.name(line) for line in places]
    width, columns = options.width, WIDEST
    if width is not None:  # long names of lines leave room for fewer panels
        names = [wrapped(name, int(width / 2 / LETTER)) for name in names]
        room = LETTER * max(len(part) for name in names for part in name.split("\n"))
        columns = max(1, min(WIDEST, int((width - room) / _NARROW)))
    height = 0.5 + len(names) * (0.06 + 0.14 * max(name.count("\n") + 1 for name in names))
    grid = page.panels(title, [*map(page.title, cost.panels)], x=label, y=[""], height=height, columns=columns)
    for (axes,), lines in zip(grid, cost.panels.values(), strict=True):
        axes.set(xscale="log", ylim=(len(places) - 0.5, -0.5))
        axes.set_yticks([*places.values()], names)
        axes.grid(visible=False, axis="y")
        axes.xaxis.set_major_formatter("{x:g}")
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.margins(x=0.15)
        for one in lines:
            place = places[one.curve.line]
            if not np.isfinite(one.sent).any():
                axes.annotate("–", (0.02, place), xycoords=("axes fraction", "data"), va="center")
                continue
            values = Range.of(one.sent[:, None] / _MEGABYTE)
            low, high = options.band_limits(values)
            mean = values.mean
            look = page.looks[one.curve.line]
            if np.any(low != high):
                axes.plot([low[0], high[0]], [place, place], color=look.color, linewidth=2.5, alpha=0.4)
            axes.plot(mean, [place], look.marker or "o", color=look.color, markersize=6, label=one.curve.line)
            words = f"{mean[0]:.{3 + (mean[0] >= 1000)}g}{'*' * bool(one.share)}"
            end = (max(high[0], mean[0]), place)
            axes.annotate(words, end, (3, 0), textcoords="offset points", va="center", fontsize=7)
    ranges = [axes.get_xlim() for (axes,) in grid]
    for (axes,), (left, right) in zip(grid, ranges, strict=True):
        if left > right / 10:  # points of a smaller range would look like multiples of each other
            axes.set_xlim(left=right / 10)
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    return page.figure


@mpl.rc_context(RC)
def _draw_times(cost: TargetCost, options: PlotOptions) -> Figure:
    page, names = Page(cost.data, options), [*cost.panels]
    label = f"modelled time (s)\nuntil {cost.words}"
    titles = [*map(page.title, names)]
    grid = page.panels("time to the target by the rate of the links", titles, x="link (Gbit/s)", y=[label], height=2.6)
    for (axes,), lines in zip(grid, cost.panels.values(), strict=True):
        for place, one in enumerate(lines):
            if np.isfinite(one.link).any():
                look, mean = page.looks[one.curve.line], np.nanmean(one.seconds(_DRAWN_RATES), axis=0)
                axes.plot(_DRAWN_RATES, mean, markevery=(place % 8, 8), **look.options)
        axes.set(xscale="log", yscale="log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
    return page.legend(page.line_handles(_lines(cost)))


def _lines(cost: TargetCost) -> list[str]:
    """Return the lines of all panels, in the order of the sweep."""
    return list(dict.fromkeys(one.curve.line for lines in cost.panels.values() for one in lines))


def compares_bytes(frame: pd.DataFrame) -> bool:
    """Tell whether the experiment of a table sweeps how updates or models are encoded, in synchronous rounds."""
    swept = any(str(key).startswith("communication.compression") for key in frame.attrs.get("swept", []))
    return swept and not ("mode" in frame and (frame["mode"] == "async").any())


def traffic_table(cost: TargetCost) -> str:
    """Return a Markdown table for each panel: final values, bytes, and modelled seconds by the rate of the links."""
    parts, unit = [], " (%)" if cost.measure == "accuracy" else ""
    for panel, lines in cost.panels.items():
        head = [
            cost.data.line_key,
            f"final {cost.measure}{unit}",
            "MB in all",
            "MB to target",
            "times fewer",
            "link MB",
            "CPU s",
        ]
        rows = [[*head, *(f"s at {rate:g} Gbit/s" for rate in RATES)]]
        for one in lines:
            final, sent = measured(one.curve, cost.measure).mean[-1], one.curve.bytes_sent[-1] / _MEGABYTE
            cells = [one.curve.line, f"{final:.2f}", f"{sent:.3g}"]
            if np.isfinite(one.sent).any():
                share = f" ({one.share})" if one.share else ""
                cells += [_with_range(one.sent / _MEGABYTE) + share, _with_range(times_fewer(lines[0], one))]
                cells += [_with_range(one.link / _MEGABYTE), f"{np.nanmean(one.work):.3g}"]
                cells += [f"{seconds:.3g}" for seconds in np.nanmean(one.seconds(RATES), axis=0)]
            rows.append([*cells, *["–"] * (len(rows[0]) - len(cells))])
        title = heading(
            cost.data,
            f"until {cost.words}",
            cost.data.facts,
            cost.data.remark,
            plain(of_panel(cost.data.panel_keys, panel)),
        )
        parts.append(f"{title}\n\n{aligned_table(rows)}\n")
    notes = "MB to target is interpolated between evaluations; times fewer: than the first line with the same seed"
    return "\n".join([*parts, f"{MODEL}; {notes}; [lowest–highest of the seeds]\n"])


def times_fewer(first: Reached, one: Reached) -> Values:
    """Return the bytes of the first line divided by those of another with the same seed, `[seeds]`.

    If the lines do not have the same number of seeds, it is the ratio of their means, `[1]`.
    """
    if not np.isfinite(first.sent).any() or not np.isfinite(one.sent).any():
        return np.full(1, np.nan)
    if len(first.sent) != len(one.sent):
        return np.array([np.nanmean(first.sent) / np.nanmean(one.sent)])
    return first.sent / one.sent


def _with_range(values: Values) -> str:
    """Return a mean with the range of the seeds, such as `36.2 [30.1–41.5]`."""
    known = values[np.isfinite(values)]
    if not known.size:
        return "–"
    mean, low, high = (f"{value:.3g}" for value in (known.mean(), known.min(), known.max()))
    return mean if known.size == 1 else f"{mean} [{low}–{high}]"
