"""The figures of an experiment's curves: a panel per attack (or what else is swept), a line or bars per rule.

They show the test accuracy over epochs, wall time or bytes, and by class; the acceptance rate of rules with a
reference; and of an asynchronous run the staleness of applied updates, and their number by worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from hpcps.figures.curve import AMONG, Among, AppliedUpdates, ClassAccuracy, Curve, Range, Values
from hpcps.figures.figure_data import FigureData
from hpcps.figures.options import PlotOptions
from hpcps.figures.page import (
    RC,
    band,
    bar_handles,
    bars,
    draw_curve,
    legend,
    line_handles,
    line_name,
    line_title,
    panel_title,
    panels,
    sign_handles,
)
from hpcps.figures.style import Look, looks

Against = Literal["epoch", "wall_time", "bytes"]
AGAINST: tuple[Against, ...] = ("epoch", "wall_time", "bytes")

_ACCEPTED: Mapping[Among, str] = {
    "received": "accepted of\nthe pairs received (%)",
    "sent": "accepted of\nthe pairs sent (%)",
}

_MANY = 60
_MARKERS = 12
_THIN: dict[str, Any] = {"linewidth": 0.7, "linestyle": "solid", "zorder": 1.5}
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
def draw_accuracy(figure_data: FigureData, against: Against = "epoch", options: PlotOptions | None = None) -> Figure:
    """Draw test accuracy: a panel per panel of the figure_data, a line per line, mean and band over the seeds.

    Figure data with one panel has room for a second one: by epoch, it shows the acceptance rate where
    several lines have one.
    """
    options = options or PlotOptions()
    if against == "bytes":  # who trains alone sends none
        figure_data = replace(
            figure_data, references=tuple(curve for curve in figure_data.references if curve.bytes_sent.any())
        )
    axis = x_axis(figure_data, against)
    styles = looks(figure_data.palette, [curve.line for curve in figure_data.references])
    with_acceptance = against == "epoch" and len(figure_data.panels) == 1 and len(figure_data.scored) > 1
    title = f"accuracy by {_clock(figure_data) if against == 'wall_time' else against}"
    names = [panel_title(figure_data, panel, options) for panel in figure_data.panels]
    names += ["acceptance rate since the start"] if with_acceptance else []
    height = 2.9 if with_acceptance else 2.2
    figure, grid = panels(figure_data, title, names, options, x=axis.label, y=["test accuracy (%)"], height=height)
    for (axes,), (panel, curves) in zip(grid, figure_data.panels.items(), strict=False):
        _draw_panel(axes, (*curves, *figure_data.references), axis, styles, options)
        if against == "epoch":
            _draw_compared(axes, panel, figure_data, styles)
        if not curves:
            reduced = not figure_data.variant and panel in figure_data.elsewhere
            words = "no full-length result yet" if reduced else "no result yet"
            axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", color="#777777")
    if with_acceptance:
        (curves,), axes = figure_data.panels.values(), grid[-1][0]
        _draw_accepted(axes, curves, styles, "sent", options, per_epoch=False)
        axes.set_ylabel("accepted of the pairs sent (%)")
        axes.tick_params(labelleft=True)
    _limit_axes(grid[0][0], whole=against == "epoch")
    handles = _handles(figure_data, styles, options)
    if against == "epoch":
        sources = dict.fromkeys(other.source for other in figure_data.compared)
        handles += [Line2D([], [], color="#555555", label=source, **_THIN) for source in sources]
    legend(figure, handles, line_title(figure_data))
    return figure


def _draw_panel(
    axes: Axes, curves: Sequence[Curve], axis: XAxis, styles: Mapping[str, Look], options: PlotOptions
) -> None:
    for position, curve in enumerate(curves):
        look, x = styles[curve.line], axis.of(curve)
        look = replace(look, width=0.7 * look.width) if len(x) > _MANY else look
        draw_curve(axes, curve, x, curve.accuracy, look, options, (position, len(curves)))


def _draw_compared(axes: Axes, panel: str, figure_data: FigureData, styles: Mapping[str, Look]) -> None:
    """Draw the curves of others as thin lines in the colours of ours, as far as ours go."""
    last = max((curve.epoch[-1] for curve in figure_data.curves if curve.epoch.size), default=0.0)
    for other in figure_data.compared:
        if other.panel == panel:
            near = other.epoch <= last
            axes.plot(other.epoch[near], other.accuracy[near], color=styles[other.line].color, **_THIN)


def _handles(figure_data: FigureData, styles: Mapping[str, Look], options: PlotOptions) -> list[Artist]:
    """Name every line once, and say what crosses and bands are where there are any."""
    references = [curve.line for curve in figure_data.references]
    lines = [*(figure_data.lines if figure_data.line_key else ()), *references]
    handles = line_handles(figure_data, lines, styles, options)
    drawn = {line_name(figure_data, curve.line, options) for curve in figure_data.curves}
    for handle in handles:
        if handle.get_label() not in drawn:
            handle.set_label(f"{handle.get_label()} (no result yet)")
    handles += sign_handles(figure_data.curves)
    swept = [curve.seeds for curves in figure_data.panels.values() for curve in curves]
    least, most = (pick(swept, default=1) for pick in (min, max))
    if most > 1:
        number = str(most) if least == most else f"{least} to {most}"
        handles.append(Patch(color="#999999", alpha=0.4, linewidth=0, label=f"{options.band} of {number} seeds"))
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
    return "simulated time" if figure_data.simulated else "wall time"


def _limit_axes(axes: Axes, *, whole: bool) -> None:
    """Begin both axes of percentages at 0; `whole`: whether the x axis has whole numbers only."""
    axes.set(ylim=(0, 100))
    axes.set_xlim(left=0)
    if whole:
        axes.xaxis.set_major_locator(MaxNLocator("auto", integer=True))


@mpl.rc_context(RC)
def draw_acceptance(figure_data: FigureData, options: PlotOptions | None = None) -> Figure:
    """Draw the acceptance rate by epoch, of (update, block) pairs: a column per panel, a row of those received, one of
    those sent. A thick line is since the start, a thin one since the evaluation before.
    """
    options = options or PlotOptions()
    styles = looks(figure_data.palette)
    scored = {panel: [curve for curve in curves if curve.acceptance] for panel, curves in figure_data.panels.items()}
    shown = {panel: curves for panel, curves in scored.items() if curves}
    names, labels = [panel_title(figure_data, panel, options) for panel in shown], [_ACCEPTED[among] for among in AMONG]
    figure, grid = panels(figure_data, "acceptance rate by epoch", names, options, x="epoch", y=labels, height=1.9)
    for both, curves in zip(grid, shown.values(), strict=True):
        for axes, among in zip(both, AMONG, strict=True):
            _draw_accepted(axes, curves, styles, among, options)
    _limit_axes(grid[0][0], whole=True)
    handles = line_handles(figure_data, figure_data.scored if figure_data.line_key else (), styles, options)
    handles.append(Line2D([], [], color="#555555", linewidth=2.0, label="since the start"))
    handles.append(Line2D([], [], color="#555555", linewidth=0.7, label="per epoch"))
    handles += sign_handles([curve for curves in shown.values() for curve in curves])
    legend(figure, handles, line_title(figure_data))
    return figure


def _draw_accepted(
    axes: Axes,
    curves: Sequence[Curve],
    styles: Mapping[str, Look],
    among: Among,
    options: PlotOptions,
    *,
    per_epoch: bool = True,
) -> None:
    """Draw the acceptance rates of one panel, percent of the pairs received or sent."""
    for position, curve in enumerate(curves):
        if not curve.acceptance:
            continue
        look, total = styles[curve.line], curve.acceptance[among, "start"]
        draw_curve(axes, curve, curve.epoch, total, look, options, (position, len(curves)))
        if per_epoch:
            axes.plot(curve.epoch, curve.acceptance[among, "evaluation"].mean, color=look.color, linewidth=0.7)


Panel = Callable[[Axes, Sequence[Any], Mapping[str, Look], PlotOptions], None]


def draw_staleness(figure_data: FigureData, options: PlotOptions | None = None) -> Figure:
    """Draw the distribution of the staleness of applied updates: the number of updates that the model received since
    the version from which the update was made, not counting the update itself.
    """
    title, x, y = "staleness of applied updates", "staleness (updates)", "applied updates (%)"
    return _draw_panels(figure_data, figure_data.applied, title, x, y, _distribution, options or PlotOptions())


def draw_counts(figure_data: FigureData, options: PlotOptions | None = None) -> Figure:
    """Draw the number of applied updates of each worker."""
    title, x, y = "applied updates by worker", "worker", "applied updates"
    return _draw_panels(figure_data, figure_data.applied, title, x, y, _counts, options or PlotOptions())


def draw_classes(figure_data: FigureData, options: PlotOptions | None = None) -> Figure:
    """Draw the accuracy of each class at the end of the runs."""
    title, x, y = "test accuracy by class, of the last models", "class", "test accuracy (%)"
    return _draw_panels(figure_data, figure_data.classes, title, x, y, _by_class, options or PlotOptions())


@mpl.rc_context(RC)
def _draw_panels(
    figure_data: FigureData,
    shown: Mapping[str, Sequence[Any]],
    title: str,
    x: str,
    y: str,
    panel: Panel,
    options: PlotOptions,
) -> Figure:
    styles = looks(figure_data.palette)
    names = [panel_title(figure_data, name, options) for name in shown]
    figure, grid = panels(figure_data, title, names, options, x=x, y=[y])
    for (axes,), lines in zip(grid, shown.values(), strict=True):
        panel(axes, lines, styles, options)
    grid[0][0].set_ylim(bottom=0)
    for axis in (grid[0][0].xaxis, grid[0][0].yaxis):
        axis.set_major_locator(MaxNLocator("auto", integer=True))
    lines_shown = figure_data.lines if figure_data.line_key else ()
    several = max(one.seeds for lines in shown.values() for one in lines) > 1
    of_seeds = f"{options.band} of the seeds" if several else ""
    if panel is _distribution:
        handles = line_handles(figure_data, lines_shown, styles, options)
        handles.append(Line2D([], [], color="#555555", linewidth=0.8, label="mean"))
        handles += [Patch(label=of_seeds, color="#999999", alpha=0.4, linewidth=0)] if several else []
    else:
        words = {line: line_name(figure_data, line, options) for line in lines_shown}
        handles = bar_handles(words, styles, of_seeds)
    legend(figure, handles, line_title(figure_data))
    return figure


def _distribution(
    axes: Axes, lines: Sequence[AppliedUpdates], styles: Mapping[str, Look], options: PlotOptions
) -> None:
    for one in lines:
        look, gap = styles[one.line], max(1, len(one.staleness) // _MARKERS)
        band(axes, one.staleness, one.share, look, options)
        above = 2.0 if look.dashes == "solid" else 2.1  # a solid line would hide a dashed one that is equal
        axes.plot(one.staleness, one.share.mean, label=one.line, markevery=gap, zorder=above, **look.options)
        axes.axvline(one.mean, color=look.color, linestyle=look.dashes, linewidth=0.8)


def _counts(axes: Axes, lines: Sequence[AppliedUpdates], styles: Mapping[str, Look], options: PlotOptions) -> None:
    _bars(axes, [(one.line, one.workers, one.updates) for one in lines], styles, options)


def _by_class(axes: Axes, lines: Sequence[ClassAccuracy], styles: Mapping[str, Look], options: PlotOptions) -> None:
    _bars(axes, [(one.line, one.classes, one.accuracy) for one in lines], styles, options)


def _bars(
    axes: Axes, lines: Sequence[tuple[str, Values, Range]], styles: Mapping[str, Look], options: PlotOptions
) -> None:
    """Draw the bars of several lines side by side: the name, the positions and the values of each."""
    width = 0.8 / len(lines)
    for place, (line, positions, values) in enumerate(lines):
        bars(axes, line, positions + (place - (len(lines) - 1) / 2) * width, values, width, styles, options)
