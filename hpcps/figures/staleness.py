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

from hpcps.figures.applied import AppliedUpdates
from hpcps.figures.figure_data import FigureData
from hpcps.figures.page import RC, band, legend, line_handles, page, panel_grid, panel_title, used
from hpcps.figures.style import Look, looks

_MARKERS = 12

Panel = Callable[[Axes, Sequence[AppliedUpdates], Mapping[str, Look]], None]


def draw_staleness(figure_data: FigureData) -> Figure:
    """Draw the distribution of the staleness of applied updates: the number of updates that the model received since
    the version from which the update was made, not counting the update itself.
    """
    return _draw(
        figure_data, "staleness of applied updates", "staleness (updates)", "applied updates (%)", _distribution
    )


def draw_counts(figure_data: FigureData) -> Figure:
    """Draw the number of applied updates of each worker."""
    return _draw(figure_data, "applied updates by worker", "worker", "applied updates", _counts)


def _draw(figure_data: FigureData, title: str, x: str, y: str, panel: Panel) -> Figure:
    styles = looks(figure_data.lines)
    rows, columns = panel_grid(len(figure_data.applied))
    with mpl.rc_context(RC):
        figure, grid = page(figure_data, title, rows, columns, shared={"sharex": True, "sharey": True})
        axes = used(grid, len(figure_data.applied))
        for place, (name, lines) in enumerate(figure_data.applied.items()):
            panel(axes[place], lines, styles)
            axes[place].set_title(panel_title(figure_data, name))
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
            handles = line_handles(lines_shown, styles)
            handles.append(Line2D([], [], color="#555555", linewidth=0.8, label="mean"))
            handles += [Patch(label="range of the seeds", **grey)] if several else []
        else:
            handles = [Patch(color=styles[line].color, linewidth=0, label=line) for line in lines_shown]
            bar: dict[str, Any] = {"color": "#555555", "linestyle": "none", "marker": "|", "markersize": 9}
            handles += [Line2D([], [], label="range of the seeds", **bar)] if several else []
        legend(figure, handles, figure_data.line_title)
    return figure


def _distribution(axes: Axes, lines: Sequence[AppliedUpdates], styles: Mapping[str, Look]) -> None:
    for one in lines:
        look, gap = styles[one.line], max(1, len(one.staleness) // _MARKERS)
        band(axes, one.staleness, one.share.low, one.share.high, look)
        above = 2.0 if look.dashes == "solid" else 2.1  # a solid line would hide a dashed one that is equal
        axes.plot(one.staleness, one.share.mean, label=one.line, markevery=gap, zorder=above, **look.options)
        axes.axvline(one.mean, color=look.color, linestyle=look.dashes, linewidth=0.8)


def _counts(axes: Axes, lines: Sequence[AppliedUpdates], styles: Mapping[str, Look]) -> None:
    width = 0.8 / len(lines)
    for place, one in enumerate(lines):
        x = one.workers + (place - (len(lines) - 1) / 2) * width
        axes.bar(x, one.updates.mean, width, color=styles[one.line].color, label=one.line)
        if one.seeds > 1:
            reach = one.updates.mean - one.updates.low, one.updates.high - one.updates.mean
            axes.errorbar(x, one.updates.mean, reach, fmt="none", ecolor="#555555", elinewidth=0.8)
