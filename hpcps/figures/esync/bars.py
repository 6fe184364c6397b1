"""Bars beside each other: a group for each panel or worker, a bar for each method, with the spread of the seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from hpcps.figures.curve import Range, Values
from hpcps.figures.esync.rates import Rates
from hpcps.figures.options import PlotOptions
from hpcps.figures.style import Look

Number = Callable[[Rates], Range]
"""Takes from the rates of a method what the bars show, `[groups]`."""

_WIDTH = 0.84


def draw_bars(
    axes: Axes,
    lines: Sequence[str],
    methods: Sequence[Rates],
    place: Values,
    number: Number,
    styles: Mapping[str, Look],
    options: PlotOptions,
    *,
    digits: str = "",
) -> None:
    """Draw the bars of some methods.

    Args:
        axes: where.
        lines: all methods: each has its place in a group, so that a missing one leaves a gap.
        methods: the methods to draw.
        place: the middle of each group, `[groups]`.
        number: the heights of the bars.
        styles: the style of each method.
        options: the statistic of the spread.
        digits: the format of the number above each bar; no numbers if it is empty.
    """
    width = _WIDTH / len(lines)
    for one in methods:
        values = number(one)
        x = place + (lines.index(one.line) - (len(lines) - 1) / 2) * width
        axes.bar(x, values.mean, 0.9 * width, color=styles[one.line].color, label=one.line)
        low, high = options.spread(values)
        top = values.mean
        if one.seeds > 1 and np.any(low != high):
            axes.errorbar(
                x, values.mean, (values.mean - low, high - values.mean), fmt="none", ecolor="#555555", elinewidth=0.8
            )
            top = np.maximum(values.mean, high)
        if digits:
            mark = "†" if one.diverged_seeds else ""
            for where, height, value in zip(x, top, values.mean, strict=True):
                text = f"{value:{digits}}{mark}" if np.isfinite(value) else "?"
                axes.annotate(
                    text, (where, height if np.isfinite(height) else 0.0), (0, 2), textcoords="offset points",
                    ha="center", va="bottom", fontsize=7,
                )  # fmt: skip


def bar_handles(
    lines: Mapping[str, str], methods: Sequence[Rates], number: Number, styles: Mapping[str, Look], options: PlotOptions
) -> list[Artist]:
    """Return the handles of a legend: the methods, and what the bars and signs of the seeds mean.

    Args:
        lines: the name of each method in the figure.
        methods: the drawn rates.
        number: what the bars show.
        styles: the style of each method.
        options: the statistic of the spread.
    """
    handles: list[Artist] = [Patch(color=styles[line].color, linewidth=0, label=name) for line, name in lines.items()]
    spreads = [options.spread(number(one)) for one in methods if one.seeds > 1]
    if any(np.any(low != high) for low, high in spreads):
        label = f"{options.band} of {max(one.seeds for one in methods)} seeds"
        handles.append(Line2D([], [], color="#555555", linestyle="none", marker="|", markersize=9, label=label))
    return handles
