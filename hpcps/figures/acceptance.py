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
    WIDEST,
    band,
    legend,
    line_handles,
    line_title,
    mark_seeds,
    mark_unfinished,
    page,
    panel_title,
    sign_handles,
)
from hpcps.figures.style import Look, looks

_MARKERS = 7
_LABELS: Mapping[Among, str] = {
    "received": "accepted of\nthe pairs received (%)",
    "sent": "accepted of\nthe pairs sent (%)",
}


def draw(figure_data: FigureData, options: PlotOptions | None = None) -> Figure:
    """Draw the acceptance rate by epoch, of (update, block) pairs: a column per panel, a row of those received, one of
    those sent. A thick line is since the start, a thin one since the evaluation before.
    """
    options = options or PlotOptions()
    styles = looks(figure_data.palette)
    scored = {panel: [curve for curve in curves if curve.acceptance] for panel, curves in figure_data.panels.items()}
    shown = [(panel, curves) for panel, curves in scored.items() if curves]
    widest = options.columns or WIDEST
    if len(shown) == 1 and widest > 1:
        cells, rows, columns = [(0, 0), (0, 1)], 1, 2
    else:
        columns = min(widest, len(shown))
        rows = 2 * -(-len(shown) // columns)
        cells = [(2 * (n // columns) + half, n % columns) for n in range(len(shown)) for half in (0, 1)]
    with mpl.rc_context(RC):
        shared = {"sharex": True, "sharey": True}
        figure, grid = page(figure_data, "acceptance rate by epoch", rows, columns, options, shared=shared, height=1.9)
        for row in range(rows):
            for column in range(columns):
                if (row, column) not in cells:
                    grid[row, column].remove()
        for number, (row, column) in enumerate(cells):
            (panel, curves), among, axes = shown[number // 2], AMONG[number % 2], grid[row, column]
            draw_panel(axes, curves, styles, among, options)
            if column == 0 or rows == 1:
                axes.set_ylabel(_LABELS[among])
                axes.tick_params(labelleft=True)
            if number % 2 == 0:
                axes.set_title(panel_title(figure_data, panel, options))
            if (row + 1, column) not in cells:
                axes.set_xlabel("epoch")
                axes.tick_params(labelbottom=True)
        grid[0, 0].set(ylim=(0, 100))
        grid[0, 0].set_xlim(left=0)
        grid[0, 0].xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        handles = line_handles(figure_data, figure_data.scored if figure_data.line_key else (), styles, options)
        handles.append(Line2D([], [], color="#555555", linewidth=2.0, label="since the start"))
        handles.append(Line2D([], [], color="#555555", linewidth=0.7, label="per epoch"))
        handles += sign_handles([curve for _, curves in shown for curve in curves])
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
        gap = max(1, len(curve.epoch) // _MARKERS)
        place = position * gap // max(1, len(curves)), gap
        band(axes, curve.epoch, total, look, options)
        axes.plot(curve.epoch, total.mean, label=curve.line, markevery=place, clip_on=False, **look.options)
        mark_seeds(axes, curve.epoch, total.mean, curve, look)
        mark_unfinished(axes, curve.epoch, total.mean, curve, look)
        if per_epoch:
            axes.plot(curve.epoch, curve.acceptance[among, "evaluation"].mean, color=look.color, linewidth=0.7)
