"""The figures of an asynchronous run: the staleness of applied updates, and their number by worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from hpcps.figures.curve import AppliedUpdates
from hpcps.figures.figure_data import FigureData
from hpcps.figures.options import PlotOptions
from hpcps.figures.page import (
    RC,
    band,
    legend,
    line_handles,
    line_name,
    line_title,
    page,
    panel_grid,
    panel_title,
    used,
)
from hpcps.figures.style import Look, looks

_MARKERS = 12

Panel = Callable[[Axes, Sequence[AppliedUpdates], Mapping[str, Look], PlotOptions], None]


def draw_staleness(figure_data: FigureData, options: PlotOptions | None = None) -> Figure:
    """Draw the distribution of the staleness of applied updates: the number of updates that the model received since
    the version from which the update was made, not counting the update itself.
    """
    title, x, y = "staleness of applied updates", "staleness (updates)", "applied updates (%)"
    return _draw(figure_data, title, x, y, _distribution, options or PlotOptions())


def draw_counts(figure_data: FigureData, options: PlotOptions | None = None) -> Figure:
    """Draw the number of applied updates of each worker."""
    title, x, y = "applied updates by worker", "worker", "applied updates"
    return _draw(figure_data, title, x, y, _counts, options or PlotOptions())


def _draw(figure_data: FigureData, title: str, x: str, y: str, panel: Panel, options: PlotOptions) -> Figure:
    styles = looks(figure_data.palette)
    rows, columns = panel_grid(len(figure_data.applied), options)
    with mpl.rc_context(RC):
        figure, grid = page(figure_data, title, rows, columns, options, shared={"sharex": True, "sharey": True})
        axes = used(grid, len(figure_data.applied))
        for place, (name, lines) in enumerate(figure_data.applied.items()):
            panel(axes[place], lines, styles, options)
            axes[place].set_title(panel_title(figure_data, name, options))
            if place % columns == 0:
                axes[place].set_ylabel(y)
            if place + columns >= len(axes):
                axes[place].set_xlabel(x)
                axes[place].tick_params(labelbottom=True)
        axes[0].set_ylim(bottom=0)
        axes[0].xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        axes[0].yaxis.set_major_locator(MaxNLocator("auto", integer=True))
        lines_shown = figure_data.lines if figure_data.line_key else ()
        several = max(one.seeds for lines in figure_data.applied.values() for one in lines) > 1
        grey: dict[str, Any] = {"color": "#999999", "alpha": 0.4, "linewidth": 0}
        handles: list[Artist]
        if panel is _distribution:
            handles = line_handles(figure_data, lines_shown, styles, options)
            handles.append(Line2D([], [], color="#555555", linewidth=0.8, label="mean"))
            handles += [Patch(label=f"{options.band} of the seeds", **grey)] if several else []
        else:
            names = {line: line_name(figure_data, line, options) for line in lines_shown}
            handles = [Patch(color=styles[line].color, linewidth=0, label=name) for line, name in names.items()]
            bar: dict[str, Any] = {"color": "#555555", "linestyle": "none", "marker": "|", "markersize": 9}
            handles += [Line2D([], [], label=f"{options.band} of the seeds", **bar)] if several else []
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
    width = 0.8 / len(lines)
    for place, one in enumerate(lines):
        x = one.workers + (place - (len(lines) - 1) / 2) * width
        axes.bar(x, one.updates.mean, width, color=styles[one.line].color, label=one.line)
        if one.seeds > 1:
            low, high = options.band_limits(one.updates)
            reach = one.updates.mean - low, high - one.updates.mean
            axes.errorbar(x, one.updates.mean, reach, fmt="none", ecolor="#555555", elinewidth=0.8)
