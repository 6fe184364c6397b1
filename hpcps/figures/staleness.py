"""The figures of an asynchronous run: the staleness of applied updates, and their number by worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import matplotlib as mpl
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
    bar_handles,
    bars,
    legend,
    line_handles,
    line_name,
    line_title,
    panel_title,
    panels,
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


@mpl.rc_context(RC)
def _draw(figure_data: FigureData, title: str, x: str, y: str, panel: Panel, options: PlotOptions) -> Figure:
    styles = looks(figure_data.palette)
    names = [panel_title(figure_data, name, options) for name in figure_data.applied]
    figure, grid = panels(figure_data, title, names, options, x=x, y=[y])
    for (axes,), lines in zip(grid, figure_data.applied.values(), strict=True):
        panel(axes, lines, styles, options)
    first = grid[0][0]
    first.set_ylim(bottom=0)
    first.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    first.yaxis.set_major_locator(MaxNLocator("auto", integer=True))
    lines_shown = figure_data.lines if figure_data.line_key else ()
    several = max(one.seeds for lines in figure_data.applied.values() for one in lines) > 1
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
    width = 0.8 / len(lines)
    for place, one in enumerate(lines):
        x = one.workers + (place - (len(lines) - 1) / 2) * width
        bars(axes, one.line, x, one.updates, width, styles, options)
