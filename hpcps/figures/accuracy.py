"""The accuracy figure: a panel per attack (or what else is swept), a line per rule, over epochs, wall time or bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

from hpcps.figures import acceptance
from hpcps.figures.curve import Curve, Values
from hpcps.figures.figure_data import FigureData
from hpcps.figures.options import PlotOptions
from hpcps.figures.page import (
    RC,
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

_MANY = 60
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
def draw(figure_data: FigureData, against: Against = "epoch", options: PlotOptions | None = None) -> Figure:
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
        acceptance.draw_panel(axes, curves, styles, "sent", options, per_epoch=False)
        axes.set_ylabel("accepted of the pairs sent (%)")
        axes.tick_params(labelleft=True)
    first = grid[0][0]
    first.set(ylim=(0, 100))
    first.set_xlim(left=0)
    if against == "epoch":
        first.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
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
