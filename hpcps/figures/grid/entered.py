"""The bypass figure: the share of Byzantine and of honest blocks that entered the model, by round."""

from __future__ import annotations

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from hpcps.figures.grid.study import Study
from hpcps.figures.grid.worst import named
from hpcps.figures.options import PlotOptions
from hpcps.figures.page import RC, WIDEST, legend, page
from hpcps.figures.style import looks

_SENDERS = ("byzantine", "honest")
_MARKERS = 7


def draw_entered(study: Study, options: PlotOptions) -> Figure | None:
    """Draw the shares over all rows and seeds: a column per attack, Byzantine blocks above, honest ones below.

    Returns:
        The figure; None if no record has the counts, or no block was attacked.
    """
    attacks = [
        attack
        for attack in study.attacks
        if (study.entered.loc[study.entered["attack"] == attack, "byzantine_sent"] > 0).any()
    ]
    if not attacks:
        return None
    styles = looks(study.rules)
    columns = min(len(attacks), options.columns or max(WIDEST, 5))
    bands = -(-len(attacks) // columns)
    with mpl.rc_context(RC):
        title = "blocks that entered the model, of those sent"
        figure, grid = page(
            study.figure_data, title, 2 * bands, columns, options, shared={"sharex": True, "sharey": True}, height=1.6
        )
        for place in range(len(attacks), bands * columns):
            for half in (0, 1):
                grid[2 * (place // columns) + half, place % columns].remove()
        for place, attack in enumerate(attacks):
            for half, sender in enumerate(_SENDERS):
                axes = grid[2 * (place // columns) + half, place % columns]
                for position, rule in enumerate(study.rules):
                    rows = study.entered[(study.entered["attack"] == attack) & (study.entered["rule"] == rule)]
                    rows = rows.sort_values("round")
                    sent = rows[f"{sender}_sent"].to_numpy(np.float64)
                    share = 100 * rows[f"{sender}_entered"].to_numpy(np.float64) / np.where(sent > 0, sent, np.nan)
                    gap = max(1, len(rows) // _MARKERS)
                    start = position * gap // max(1, len(study.rules))
                    look = styles[rule].options | {"linewidth": 1.1}
                    axes.plot(rows["round"], share, markevery=(start, gap), clip_on=False, **look)
                if half == 0:
                    axes.set_title(named(attack, options))
                if place % columns == 0:
                    axes.set_ylabel(f"{sender.replace('b', 'B')} (%)" if half == 0 else f"{sender} (%)")
                if half == 1:
                    axes.set_xlabel("round")
                    axes.tick_params(labelbottom=True)
        grid[0, 0].set(ylim=(-3, 103))
        grid[0, 0].set_xlim(left=0)
        grid[0, 0].xaxis.set_major_locator(MaxNLocator("auto", integer=True))
        handles = [Line2D([], [], label=named(rule, options), **styles[rule].options) for rule in study.rules]
        legend(figure, handles)
    return figure
