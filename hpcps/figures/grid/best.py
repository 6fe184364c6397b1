"""The heat map of the best rules: for each attack in each row, and for the worst case over the attacks."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure

from hpcps.figures.grid.heat_map import draw_heat_map
from hpcps.figures.grid.study import Study
from hpcps.figures.grid.worst import named
from hpcps.figures.options import PlotOptions

WORST_CASE = "worst attack"


def draw_best(study: Study, options: PlotOptions) -> Figure:
    """Draw the highest accuracy over the rules and the rule that has it: a row per setting, a column per attack."""
    by_rule = np.concatenate([study.by_attack, study.worst[:, :, None]], axis=2)  # [rules, rows, attacks + 1]
    values = np.asarray(np.ma.masked_invalid(by_rule).max(axis=0).filled(np.nan), np.float64)
    best = np.nan_to_num(by_rule, nan=-1.0).argmax(axis=0)
    rules = [
        ["" if np.isnan(value) else named(study.rules[rule], options) for value, rule in zip(*both, strict=True)]
        for both in zip(values, best, strict=True)
    ]
    return draw_heat_map(
        study.figure_data,
        "final accuracy of the best rule, which is below it",
        values,
        rules,
        [options.names.get(row, row) for row in study.rows],
        [*(named(attack, options) for attack in study.attacks), WORST_CASE],
        options,
    )
