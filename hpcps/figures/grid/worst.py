"""The heat map of the worst accuracies: each rule in each row, under the attack that harms it most."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from hpcps.figures.grid.heat_map import draw_heat_map
from hpcps.figures.grid.study import Study
from hpcps.figures.labels import of_value
from hpcps.figures.options import PlotOptions


def draw_worst(study: Study, options: PlotOptions) -> Figure:
    """Draw the lowest accuracy over the attacks: a row per setting, a column per rule; the best of a row is framed."""
    values = study.worst.T
    attacks = [
        [named(study.worst_attack(rule, row), options) + mark(study, rule, row) for rule in range(len(study.rules))]
        for row in range(len(study.rows))
    ]
    best = [(row, int(np.nanargmax(line))) for row, line in enumerate(values) if not np.isnan(line).all()]
    return draw_heat_map(
        study.figure_data,
        "final accuracy under the worst attack, which is below it; framed: the best rule"
        + "; ‡: with stalled runs" * bool(study.stalled.any()),
        values,
        attacks,
        [options.names.get(row, row) for row in study.rows],
        [named(rule, options) for rule in study.rules],
        options,
        framed=best,
    )


def named(word: str, options: PlotOptions) -> str:
    """Return the name of a rule or an attack for people."""
    return options.names.get(word) or of_value(word)


def mark(study: Study, rule: int, row: int) -> str:
    """Return an asterisk for a cell with results of some of its runs only, and a sign for one with stalled runs."""
    signs = "*" if study.incomplete[rule, row] and not np.isnan(study.worst[rule, row]) else ""
    return signs + (" ‡" if study.stalled[rule, row].any() else "")
