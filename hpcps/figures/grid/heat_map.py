"""A heat map: a table whose cells have a number, a remark, and the color of the number."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from hpcps.figures.curve import Values
from hpcps.figures.figure_data import FigureData
from hpcps.figures.options import PlotOptions
from hpcps.figures.page import RC, page

_COLORS = "cividis"  # its lightness grows with the value, and the colour-blind see it like others
_DARK = 55.0
"""Below this percentage the color is dark, so that the text is white."""

_CELL = 0.95
_LETTER = 0.068


def draw_heat_map(
    figure_data: FigureData,
    title: str,
    values: Values,
    remarks: Sequence[Sequence[str]],
    rows: Sequence[str],
    columns: Sequence[str],
    options: PlotOptions,
    *,
    framed: Sequence[tuple[int, int]] = (),
) -> Figure:
    """Draw percentages as a heat map.

    Args:
        figure_data: describes the runs.
        title: the quantity that the figure shows.
        values: percentages, `[rows, columns]`; NaN: no result.
        remarks: a short text below each number, `[rows, columns]`.
        rows: the names of the rows.
        columns: the names of the columns.
        options: the size, and whether there is a heading.
        framed: the cells with a frame, as row and column.
    """
    room = _LETTER * max(map(len, rows), default=0)
    widest = max((len(word) for line in remarks for word in line), default=0)
    cell = max(_CELL, 0.055 * widest + 0.12)
    sized = options.model_copy(update={"width": options.width or cell * len(columns) + room + 1.2})
    height = 0.42 * len(rows) + 0.3 + _LETTER * 0.6 * max(map(len, columns))
    with mpl.rc_context({**RC, "axes.grid": False}):
        figure, grid = page(figure_data, title, 1, 1, sized, shared={}, height=height)
        axes = grid[0, 0]
        image = axes.imshow(
            values, cmap=mpl.colormaps[_COLORS].with_extremes(bad="#eeeeee"), vmin=0, vmax=100, aspect="auto"
        )
        shrunk = min(1.0, (options.width or np.inf) / (cell * len(columns) + room + 1.2))
        for row, line in enumerate(values):
            for column, value in enumerate(line):
                color = "white" if value < _DARK else "black"
                number = "–" if np.isnan(value) else f"{value:.1f}"
                remark = remarks[row][column]
                up = -0.13 if remark else 0.0
                axes.text(column, row + up, number, ha="center", va="center", color=color, fontsize=8.5 * shrunk)
                axes.text(column, row + 0.24, remark, ha="center", va="center", color=color, fontsize=6.2 * shrunk)
        for row, column in framed:
            frame = Rectangle(
                (column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="#D55E00", linewidth=1.8, clip_on=False
            )
            axes.add_patch(frame)
        axes.set_xticks(range(len(columns)), columns, rotation=30, ha="right", rotation_mode="anchor")
        axes.set_yticks(range(len(rows)), rows)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        figure.colorbar(image, ax=axes, label="test accuracy (%)", pad=0.01, aspect=12)
    return figure
