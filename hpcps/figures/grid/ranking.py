"""The ranking of the rules by their score, with its spread over the seeds."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure

from hpcps.figures.curve import Range
from hpcps.figures.grid.study import Study
from hpcps.figures.grid.worst import named
from hpcps.figures.options import PlotOptions
from hpcps.figures.page import RC, page
from hpcps.figures.style import looks


def draw_ranking(study: Study, options: PlotOptions) -> Figure:
    """Draw the score of each rule, the best on top: a circle per seed, a marker for the mean, a bar for the spread."""
    order, styles = study.ranking, looks(study.rules)
    values = Range.of(study.scores.T)
    low, high = options.spread(values)
    with mpl.rc_context(RC):
        height = 0.3 * len(order) + 0.5
        sized = options.model_copy(update={"width": options.width or 6.2})
        title = "mean over the rows of the accuracy under the worst attack"
        figure, grid = page(study.figure_data, title, 1, 1, sized, shared={}, height=height)
        axes = grid[0, 0]
        for place, rule in enumerate(order):
            look, seeds = styles[study.rules[rule]], study.scores[rule]
            if np.isnan(values.mean[rule]):
                continue
            axes.plot([low[rule], high[rule]], [place, place], color=look.color, linewidth=2.5, alpha=0.4)
            axes.plot(
                seeds, np.full(len(seeds), place), "o", color=look.color, markersize=3, fillstyle="none", alpha=0.8
            )
            axes.plot(values.mean[rule], place, look.marker, color=look.color, markersize=6, zorder=3)
            axes.annotate(
                f"{values.mean[rule]:.1f}", (values.mean[rule], place), (0, 5), textcoords="offset points",
                ha="center", fontsize=7,
            )  # fmt: skip
        axes.set_yticks(
            range(len(order)),
            [named(study.rules[rule], options) + " ‡" * bool(study.stalled[rule].any()) for rule in order],
        )
        axes.set_ylim(len(order) - 0.5, -0.6)
        axes.set_xlim(left=0)
        axes.margins(x=0.04)
        axes.grid(visible=False, axis="y")
        spread = f"; circles: {study.scores.shape[1]} seeds; bar: {options.band}" if study.scores.shape[1] > 1 else ""
        signs = "; ‡: with stalled runs" if study.stalled.any() else ""
        axes.set_xlabel(f"score (%){spread}{signs}")
    return figure
