"""The acceptance figure: the share of pairs that a rule with a reference accepted, over the epochs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from hpcps.figures.curve import AMONG, Among, Curve
from hpcps.figures.figure_data import FigureData
from hpcps.figures.options import PlotOptions
from hpcps.figures.page import (
    RC,
    draw_curve,
    legend,
    line_handles,
    line_title,
    panel_title,
    panels,
    sign_handles,
)
from hpcps.figures.style import Look, looks

_LABELS: Mapping[Among, str] = {
    "received": "accepted of\nthe pairs received (%)",
    "sent": "accepted of\nthe pairs sent (%)",
}


@mpl.rc_context(RC)
def draw(figure_data: FigureData, options: PlotOptions | None = None) -> Figure:
    """Draw the acceptance rate by epoch, of (update, block) pairs: a column per panel, a row of those received, one of
    those sent. A thick line is since the start, a thin one since the evaluation before.
    """
    options = options or PlotOptions()
    styles = looks(figure_data.palette)
    scored = {panel: [curve for curve in curves if curve.acceptance] for panel, curves in figure_data.panels.items()}
    shown = {panel: curves for panel, curves in scored.items() if curves}
    names, labels = [panel_title(figure_data, panel, options) for panel in shown], [_LABELS[among] for among in AMONG]
    figure, grid = panels(figure_data, "acceptance rate by epoch", names, options, x="epoch", y=labels, height=1.9)
    for both, curves in zip(grid, shown.values(), strict=True):
        for axes, among in zip(both, AMONG, strict=True):
            draw_panel(axes, curves, styles, among, options)
    first = grid[0][0]
    first.set(ylim=(0, 100))
    first.set_xlim(left=0)
    first.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    handles = line_handles(figure_data, figure_data.scored if figure_data.line_key else (), styles, options)
    handles.append(Line2D([], [], color="#555555", linewidth=2.0, label="since the start"))
    handles.append(Line2D([], [], color="#555555", linewidth=0.7, label="per epoch"))
    handles += sign_handles([curve for curves in shown.values() for curve in curves])
    legend(figure, handles, line_title(figure_data))
    return figure


def draw_panel(
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
