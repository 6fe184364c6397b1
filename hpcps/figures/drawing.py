"""The figures of an experiment's curves: a panel per attack (or what else is swept), a line or bars per rule.

They show the test accuracy or perplexity over epochs, wall time or bytes, and the accuracy by class; the acceptance
rate of rules with a reference; and of an asynchronous run the staleness of applied updates, and their number by worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Any, Literal, TypeVar

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from hpcps.figures.curve import AMONG, Among, AppliedUpdates, ClassAccuracy, Curve, Range, Values
from hpcps.figures.figure_data import FigureData
from hpcps.figures.from_table import figure_data_of
from hpcps.figures.labels import file_name, suffixes
from hpcps.figures.options import PlotOptions, plot_options, select
from hpcps.figures.page import RC, Page, band, sign_handles

Shown = TypeVar("Shown", AppliedUpdates, ClassAccuracy)

Against = Literal["epoch", "wall_time", "bytes"]
AGAINST: tuple[Against, ...] = ("epoch", "wall_time", "bytes")

Measure = Literal["accuracy", "perplexity"]
MEASURES: Mapping[Measure, str] = {"accuracy": "test accuracy (%)", "perplexity": "test perplexity"}
"""What curves show, and the label of its axis."""

_ACCEPTED: Mapping[Among, str] = {
    "received": "accepted of\nthe pairs received (%)",
    "sent": "accepted of\nthe pairs sent (%)",
}

_MANY = 60
_MARKERS = 12
_THIN: dict[str, Any] = {"linewidth": 0.7, "zorder": 1.5}
_DASHES = ("solid", (0, (6, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)))
_SECONDS = ((1.0, "s"), (60.0, "min"), (3600.0, "h"))
_BYTES = ((1.0, "B"), (1e3, "kB"), (1e6, "MB"), (1e9, "GB"), (1e12, "TB"))


@dataclass(frozen=True)
class XAxis:
    """What the x axis shows, in which unit."""

    against: Against
    label: str
    unit: float

    def of(self, curve: Curve) -> Values:
        """Return the values of a curve on this axis, `[epochs]`."""
        values = {"epoch": curve.epoch, "wall_time": curve.wall, "bytes": curve.bytes_sent}[self.against]
        return values / self.unit


@mpl.rc_context(RC)
def draw_accuracy(
    figure_data: FigureData,
    against: Against = "epoch",
    options: PlotOptions | None = None,
    *,
    measure: Measure = "accuracy",
) -> Figure:
    """Draw test accuracy, or the perplexity of text: a panel per panel of the figure data, a line per line, mean and
    band over the seeds.

    Figure data with one panel has room for a second one: by epoch, it shows the acceptance rate where
    several lines have one.
    """
    if against == "bytes":  # a process that trains alone sends nothing
        figure_data = replace(
            figure_data, references=tuple(curve for curve in figure_data.references if curve.bytes_sent.any())
        )
    page, axis = Page(figure_data, options), x_axis(figure_data, against)
    plain = measure == "accuracy"
    with_acceptance = plain and against == "epoch" and len(figure_data.panels) == 1 and len(figure_data.scored) > 1
    title = f"{measure} by {_clock(figure_data) if against == 'wall_time' else against}"
    names = [*map(page.title, figure_data.panels), *(["acceptance rate since the start"] if with_acceptance else [])]
    height = 2.9 if with_acceptance else 2.2
    grid = page.panels(title, names, x=axis.label, y=[MEASURES[measure]], height=height)
    for (axes,), (panel, curves) in zip(grid, figure_data.panels.items(), strict=False):
        _draw_measured(page, axes, (*curves, *figure_data.references), axis, measure)
        if plain and against == "epoch":
            _draw_compared(page, axes, panel)
        if not curves:
            reduced = not figure_data.variant and panel in figure_data.elsewhere
            words = "no full-length result yet" if reduced else "no result yet"
            axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", color="#777777")
    if with_acceptance:
        (curves,), axes = figure_data.panels.values(), grid[-1][0]
        _draw_accepted(page, axes, curves, "sent", per_epoch=False)
        axes.set_ylabel("accepted of the pairs sent (%)")
        axes.tick_params(labelleft=True)
    _limit_axes(grid[0][0], whole=against == "epoch", percent=plain)
    handles = _handles(page)
    if plain and against == "epoch":
        for source, style in _styles(page).items():
            label = source.replace("$", r"\$")  # otherwise matplotlib reads a formula
            handles.append(Line2D([], [], color="#555555", label=label, **style))
    return page.legend(handles)


def measured(curve: Curve, measure: Measure) -> Range:
    """Return what a curve shows, `[epochs]`; NaN without a perplexity."""
    unknown = Range.of(np.full((1, len(curve.epoch)), np.nan))
    return curve.accuracy if measure == "accuracy" else curve.perplexity or unknown


def _draw_measured(page: Page, axes: Axes, curves: Sequence[Curve], axis: XAxis, measure: Measure) -> None:
    for position, curve in enumerate(curves):
        look, x = page.looks[curve.line], axis.of(curve)
        look = replace(look, width=0.7 * look.width) if len(x) > _MANY else look
        page.draw_curve(axes, curve, x, measured(curve, measure), (position, len(curves)), look)


def _draw_compared(page: Page, axes: Axes, panel: str) -> None:
    """Draw the curves of others as thin lines in the colours of ours, each as far as ours goes."""
    last = {curve.line: curve.epoch[-1] for curve in page.data.panels[panel] if curve.epoch.size}
    styles = _styles(page)
    for other in page.data.compared:
        if other.panel == panel:
            near, color = other.epoch <= last.get(other.line, 0.0), page.looks[other.line].color
            axes.plot(other.epoch[near], other.accuracy[near], color=color, **styles[other.source])


def _styles(page: Page) -> dict[str, dict[str, Any]]:
    """Return the style of each source of curves of others."""
    sources = dict.fromkeys(other.source for other in page.data.compared)
    return {source: _THIN | {"linestyle": style} for source, style in zip(sources, cycle(_DASHES))}


def _handles(page: Page) -> list[Artist]:
    """Name every line once, and say what crosses and bands are where there are any."""
    data = page.data
    references = [curve.line for curve in data.references]
    handles = page.line_handles([*(data.lines if data.line_key else ()), *references])
    drawn = {page.entry(curve.line) for curve in data.curves}
    for handle in handles:
        if handle.get_label() not in drawn:
            handle.set_label(f"{handle.get_label()} (no result yet)")
    handles += sign_handles(data.curves)
    swept = [curve.seeds for curves in data.panels.values() for curve in curves]
    least, most = (pick(swept, default=1) for pick in (min, max))
    if most > 1:
        number = str(most) if least == most else f"{least} to {most}"
        label = f"{page.options.band} of {number} seeds"
        handles.append(Patch(color="#999999", alpha=0.4, linewidth=0, label=label))
    return handles


def x_axis(figure_data: FigureData, against: Against) -> XAxis:
    """Return the x axis of accuracies, in a unit that fits the largest value."""
    if against == "epoch":
        return XAxis(against, "epoch", 1.0)
    name, units = (_clock(figure_data), _SECONDS) if against == "wall_time" else ("sent by all processes", _BYTES)
    plain = XAxis(against, name, 1.0)
    largest = max(np.max(plain.of(curve), initial=0.0) for curve in figure_data.curves)
    unit, symbol = [pair for pair in units if pair[0] * 2 <= largest or pair[0] == 1.0][-1]
    return XAxis(against, f"{name} ({symbol})", unit)


def _clock(figure_data: FigureData) -> str:
    if figure_data.simulated:
        return "simulated time"
    return "wall time of one process" if figure_data.in_one_process else "wall time"


def _limit_axes(axes: Axes, *, whole: bool, percent: bool = True) -> None:
    """Begin both axes of percentages at 0; `whole`: whether the x axis has whole numbers only."""
    if percent:
        axes.set(ylim=(0, 100))
    else:
        # A model that knows nothing has a perplexity of the size of the vocabulary, and one that diverged a larger one.
        axes.set_yscale("log")
        axes.set_ylim(top=min(axes.get_ylim()[1], 256))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:g}")
    axes.set_xlim(left=0)
    if whole:
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))


@mpl.rc_context(RC)
def draw_callback(figure_data: FigureData, name: str, options: PlotOptions | None = None) -> Figure:
    """Draw the values that callbacks returned under a name, at the evaluations of each line."""
    page = Page(figure_data, options)
    grid = page.panels(f"{name} by epoch", [*map(page.title, figure_data.panels)], x="epoch", y=[name])
    for (axes,), curves in zip(grid, figure_data.panels.values(), strict=True):
        having = [curve for curve in (*curves, *figure_data.references) if name in curve.callbacks]
        for position, curve in enumerate(having):
            page.draw_curve(axes, curve, curve.epoch, curve.callbacks[name], (position, len(having)))
    grid[0][0].set_xlim(left=0)
    grid[0][0].xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    return page.legend(_handles(page))


@mpl.rc_context(RC)
def draw_acceptance(figure_data: FigureData, options: PlotOptions | None = None) -> Figure:
    """Draw the acceptance rate by epoch, of (update, block) pairs: a column per panel, a row of those received, one of
    those sent. A thick line is since the start, a thin one since the evaluation before.
    """
    page = Page(figure_data, options)
    scored = {panel: [curve for curve in curves if curve.acceptance] for panel, curves in figure_data.panels.items()}
    shown = {panel: curves for panel, curves in scored.items() if curves}
    names, labels = [*map(page.title, shown)], [_ACCEPTED[among] for among in AMONG]
    grid = page.panels("acceptance rate by epoch", names, x="epoch", y=labels, height=1.9)
    for both, curves in zip(grid, shown.values(), strict=True):
        for axes, among in zip(both, AMONG, strict=True):
            _draw_accepted(page, axes, curves, among)
    _limit_axes(grid[0][0], whole=True)
    handles = page.line_handles(figure_data.scored if figure_data.line_key else ())
    handles.append(Line2D([], [], color="#555555", linewidth=2.0, label="since the start"))
    handles.append(Line2D([], [], color="#555555", linewidth=0.7, label="per epoch"))
    return page.legend([*handles, *sign_handles([curve for curves in shown.values() for curve in curves])])


def _draw_accepted(page: Page, axes: Axes, curves: Sequence[Curve], among: Among, *, per_epoch: bool = True) -> None:
    """Draw the acceptance rates of one panel, percent of the pairs received or sent."""
    for position, curve in enumerate(curves):
        if not curve.acceptance:
            continue
        page.draw_curve(axes, curve, curve.epoch, curve.acceptance[among, "start"], (position, len(curves)))
        if per_epoch:
            color, rates = page.looks[curve.line].color, curve.acceptance[among, "evaluation"]
            axes.plot(curve.epoch, rates.mean, color=color, linewidth=0.7)


@mpl.rc_context(RC)
def draw_staleness(figure_data: FigureData, options: PlotOptions | None = None) -> Figure:
    """Draw the distribution of the staleness of applied updates: the number of updates that the model received since
    the version from which the update was made, not counting the update itself.
    """
    page, shown = Page(figure_data, options), figure_data.applied
    grid = _panels(page, shown, "staleness of applied updates", "staleness (updates)", "applied updates (%)")
    for axes, lines in zip(grid, shown.values(), strict=True):
        for one in lines:
            look, gap = page.looks[one.line], max(1, len(one.staleness) // _MARKERS)
            band(axes, one.staleness, one.share, look, page.options)
            above = 2.0 if look.dashes == "solid" else 2.1  # a solid line would hide a dashed one that is equal
            axes.plot(one.staleness, one.share.mean, label=one.line, markevery=gap, zorder=above, **look.options)
            axes.axvline(one.mean, color=look.color, linestyle=look.dashes, linewidth=0.8)
    _begin_at_zero(grid[0])
    handles = page.line_handles(_named(page, shown))
    handles.append(Line2D([], [], color="#555555", linewidth=0.8, label="mean"))
    if of_seeds := _band_of_seeds(page, shown):
        handles.append(Patch(label=of_seeds, color="#999999", alpha=0.4, linewidth=0))
    return page.legend(handles)


def draw_counts(figure_data: FigureData, options: PlotOptions | None = None) -> Figure:
    """Draw the number of applied updates of each worker."""
    labels = "applied updates by worker", "worker", "applied updates"
    page = Page(figure_data, options)
    return _draw_bars(page, figure_data.applied, labels, lambda one: (one.workers, one.updates))


def draw_classes(figure_data: FigureData, options: PlotOptions | None = None) -> Figure:
    """Draw the accuracy of each class at the end of the runs."""
    labels = "test accuracy by class, of the last models", "class", "test accuracy (%)"
    page = Page(figure_data, options)
    return _draw_bars(page, figure_data.classes, labels, lambda one: (one.classes, one.accuracy))


@mpl.rc_context(RC)
def _draw_bars(
    page: Page,
    shown: Mapping[str, Sequence[Shown]],
    labels: tuple[str, str, str],
    bars: Callable[[Shown], tuple[Values, Range]],
) -> Figure:
    """Draw the bars of several lines side by side.

    Args:
        page: the figure.
        shown: the lines of each panel.
        labels: what the figure shows, and the labels of its axes.
        bars: returns the positions and the values of a line.
    """
    grid = _panels(page, shown, *labels)
    for axes, lines in zip(grid, shown.values(), strict=True):
        width = 0.8 / len(lines)
        for place, one in enumerate(lines):
            positions, values = bars(one)
            page.draw_bars(axes, one.line, positions + (place - (len(lines) - 1) / 2) * width, values, width)
    _begin_at_zero(grid[0])
    return page.legend(page.bar_handles(_named(page, shown), _band_of_seeds(page, shown)))


def _panels(page: Page, shown: Mapping[str, Sequence[Shown]], title: str, x: str, y: str) -> list[Axes]:
    return [axes for (axes,) in page.panels(title, [*map(page.title, shown)], x=x, y=[y])]


def _begin_at_zero(axes: Axes) -> None:
    axes.set_ylim(bottom=0)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator("auto", integer=True))


def _named(page: Page, shown: Mapping[str, Sequence[Shown]]) -> list[str]:
    """Return the lines that a legend names: those that are drawn, in the order of the figure."""
    drawn = {one.line for lines in shown.values() for one in lines}
    return [line for line in page.data.lines if line in drawn] if page.data.line_key else []


def _band_of_seeds(page: Page, shown: Mapping[str, Sequence[Shown]]) -> str:
    """Describe the bands; empty if there is only one seed."""
    several = max(one.seeds for lines in shown.values() for one in lines) > 1
    return f"{page.options.band} of the seeds" if several else ""


def figures(frame: pd.DataFrame, baseline: pd.DataFrame | None = None, **options: Any) -> dict[str, Figure]:
    """Draw the figures of the table of `hpcps collect`; return them by name, such as `accuracy_by_epoch`.

    Args:
        frame: the table.
        baseline: the table of a further experiment, shown for reference.
        options: the fields of `PlotOptions`, such as `lines=["zeno", "average"]` or `width=3.4`.

    Raises:
        RunError: the table has no evaluations, or the options have mistakes.
    """
    return dict(draw_all(figure_data_of(frame, baseline), plot_options(options)))


def draw_all(shown: Sequence[FigureData], options: PlotOptions) -> Iterator[tuple[str, Figure]]:
    """Yield the name and the figure of each figure of each variant; the names of several variants have suffixes.

    The figures are accuracy by epoch, wall time and bytes, and likewise the perplexity of text; the acceptance rate of
    rules with a reference; the accuracy by class, of runs with an evaluator and of those that `hpcps evaluate` has
    evaluated; and for asynchronous training the staleness of applied updates and their number by worker.
    """
    endings = suffixes([figure_data.variant for figure_data in shown])
    for figure_data, suffix in zip(select(shown, options), endings, strict=True):
        for name, figure in _figures(figure_data, options):
            yield f"{name}{suffix}", figure


def _figures(figure_data: FigureData, options: PlotOptions) -> Iterator[tuple[str, Figure]]:
    if not figure_data.curves:
        return  # the chosen lines and panels are those of another variant
    for against in AGAINST:
        if against == "bytes" and not any(np.isfinite(curve.bytes_sent).any() for curve in figure_data.curves):
            continue  # such as of imported logs, which do not state them
        yield f"accuracy_by_{against}", draw_accuracy(figure_data, against, options)
        if figure_data.perplexed:
            yield f"perplexity_by_{against}", draw_accuracy(figure_data, against, options, measure="perplexity")
    for name in dict.fromkeys(name for one in figure_data.curves for name in one.callbacks):
        yield f"callback_{file_name(name)}_by_epoch", draw_callback(figure_data, name, options)
    if figure_data.scored:
        yield "acceptance_by_epoch", draw_acceptance(figure_data, options)
    if figure_data.classes:
        yield "accuracy_by_class", draw_classes(figure_data, options)
    if figure_data.applied:
        yield "staleness", draw_staleness(figure_data, options)
        yield "updates_by_worker", draw_counts(figure_data, options)
