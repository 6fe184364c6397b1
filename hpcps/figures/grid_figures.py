"""The figures of a study of rules under attacks: heat maps, a ranking, and the blocks that entered the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import matplotlib as mpl
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator

from hpcps.figures.curve import Range, Values
from hpcps.figures.figure_data import FigureData
from hpcps.figures.grid_study import Study, mark, selected
from hpcps.figures.labels import SEPARATOR, of_value, suffixes, without_tolerances
from hpcps.figures.options import PlotOptions
from hpcps.figures.page import LETTER, RC, Page, markers, wrapped


def draw_grid(studies: Sequence[Study], options: PlotOptions) -> Iterator[tuple[str, Figure]]:
    """Yield the name and the figure of each figure of each variant: heat maps, a ranking, and bypass statistics.

    The heat map of rules by attacks is a figure for each row, with the number of the row in its name if there are
    several. Rules that differ only in the number of Byzantine updates that they tolerate have a heat map of their own.

    Raises:
        RunError: there is no rule or attack that the options choose.
    """
    endings = suffixes([study.figure_data.variant for study in studies])
    for whole, suffix in zip(studies, endings, strict=True):
        study = selected(whole, options)
        yield f"grid_worst{suffix}", draw_worst(study, options)
        if len(study.rules) > 1:
            yield f"grid_best{suffix}", draw_best(study, options)
            yield f"grid_ranking{suffix}", draw_ranking(study, options)
        families = [rules for rules in _families(study) if len(rules) > 1]
        for place, rules in enumerate(families, 1):
            ending = f"-{place}" if len(families) > 1 else ""
            yield f"grid_tolerance{ending}{suffix}", draw_tolerances(study, rules, options)
        for row in range(len(study.rows)) if len(study.attacks) > 1 else ():
            number = f"-{row + 1}" if len(study.rows) > 1 else ""
            yield f"grid_attacks{number}{suffix}", draw_attacks(study, row, options)
        if bypass := draw_entered(study, options):
            yield f"grid_bypass{suffix}", bypass


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
        "final accuracy under the worst attack{below}; framed: the best rule"
        + UNFINISHED * bool(study.incomplete.any())
        + "; ‡: with stalled runs" * bool(study.stalled.any()),
        values,
        attacks,
        [options.names.get(row, row) for row in study.rows],
        [named(rule, options) for rule in study.rules],
        options,
        framed=best,
    )


def _families(study: Study) -> list[list[int]]:
    """Return the rules that differ only in the number of Byzantine updates that they tolerate, together."""
    found: dict[str, list[int]] = {}
    for rule, name in enumerate(study.rules):
        found.setdefault(without_tolerances(name), []).append(rule)
    return [*found.values()]


def draw_tolerances(study: Study, rules: Sequence[int], options: PlotOptions) -> Figure:
    """Draw the lowest accuracy over the attacks of one rule: a row per setting, a column per number that it tolerates.

    The best number of a row is framed.
    """
    family = without_tolerances(study.rules[rules[0]])
    values = study.worst[[*rules]].T
    attacks = [
        [named(study.worst_attack(rule, row), options) + mark(study, rule, row) for rule in rules]
        for row in range(len(study.rows))
    ]
    best = [(row, int(np.nanargmax(line))) for row, line in enumerate(values) if not np.isnan(line).all()]
    return draw_heat_map(
        study.figure_data,
        f"final accuracy of {named(family, options)} under the worst attack{{below}}; framed: the best of a row"
        + UNFINISHED * bool(study.incomplete[[*rules]].any())
        + "; ‡: with stalled runs" * bool(study.stalled[[*rules]].any()),
        values,
        attacks,
        [options.names.get(row, row) for row in study.rows],
        [study.rules[rule].removeprefix(family).strip().replace(" ", " = ") or "default" for rule in rules],
        options,
        framed=best,
    )


def draw_attacks(study: Study, row: int, options: PlotOptions) -> Figure:
    """Draw the accuracy of each rule under each attack in one row of the study: a row per rule, a column per attack.

    The best rule under each attack is framed; with several seeds, the sample standard deviation is below the mean.
    """
    values, seeds = study.by_attack[:, row], study.accuracy[:, row]
    several = seeds.shape[-1] > 1
    remarks = [[_deviation(each) for each in line] for line in seeds]
    best = [(int(np.nanargmax(column)), at) for at, column in enumerate(values.T) if not np.isnan(column).all()]
    setting = options.names.get(study.rows[row], study.rows[row])
    return draw_heat_map(
        study.figure_data,
        "final accuracy"
        + f" with {setting.replace(SEPARATOR, ', ')}" * bool(setting)
        + "{below}; framed: the best rule"
        + UNFINISHED * bool(study.incomplete[:, row].any()),
        values,
        remarks,
        [named(rule, options) for rule in study.rules],
        [named(attack, options) for attack in study.attacks],
        options,
        framed=best,
        meaning=", with the standard deviation of the seeds below it" if several else "",
    )


def _deviation(seeds: Values) -> str:
    """Return the deviation of the seeds that have a result, and an asterisk if others do not."""
    known = seeds[np.isfinite(seeds)]
    words = f"± {known.std(ddof=1):.1f}" if len(known) > 1 else ""
    return words + "*" * (0 < len(known) < len(seeds))


def named(word: str, options: PlotOptions) -> str:
    """Return the name of a rule or an attack for people."""
    return options.names.get(word) or of_value(word)


WORST_CASE = "worst attack"
UNFINISHED = "; *: some runs have no result yet"


def draw_best(study: Study, options: PlotOptions) -> Figure:
    """Draw the highest accuracy over the rules and the rule that has it: a row per setting, a column per attack."""
    by_rule = np.concatenate([study.by_attack, study.worst[:, :, None]], axis=2)  # [rules, rows, attacks + 1]
    values = np.asarray(np.ma.masked_invalid(by_rule).max(axis=0).filled(np.nan), np.float64)
    best = np.nan_to_num(by_rule, nan=-1.0).argmax(axis=0)
    uncertain = np.concatenate([study.uncertain, study.uncertain.any(axis=1, keepdims=True)], axis=1)
    rules = [
        [
            "" if np.isnan(value) else named(study.rules[rule], options) + "*" * bool(some)
            for value, rule, some in zip(*each, strict=True)
        ]
        for each in zip(values, best, uncertain, strict=True)
    ]
    return draw_heat_map(
        study.figure_data,
        "final accuracy of the best rule{below}" + UNFINISHED * bool(study.uncertain.any()),
        values,
        rules,
        [options.names.get(row, row) for row in study.rows],
        [*(named(attack, options) for attack in study.attacks), WORST_CASE],
        options,
    )


def draw_ranking(study: Study, options: PlotOptions) -> Figure:
    """Draw the score of each rule, the best on top: a circle per seed, a marker for the mean, a bar for the band."""
    order, page = study.ranking, Page(study.figure_data, options, study.rules)
    values = Range.of(study.scores.T)
    low, high = options.band_limits(values)
    with mpl.rc_context(RC):
        title = "mean over the rows of the accuracy under the worst attack"
        axes = page.panel(title, width=6.2, height=0.3 * len(order) + 0.5)
        for place, rule in enumerate(order):
            look, seeds = page.looks[study.rules[rule]], study.scores[rule]
            if np.isnan(values.mean[rule]):
                axes.annotate(
                    "no score yet", (0.01, place), xycoords=("axes fraction", "data"), va="center", color="#777777"
                )
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
        seeds_note = (
            f"; circles: {study.scores.shape[1]} seeds; bar: {options.band}" if study.scores.shape[1] > 1 else ""
        )
        signs = "; ‡: with stalled runs" if study.stalled.any() else ""
        axes.set_xlabel(f"score (%){seeds_note}{signs}")
    return page.figure


_COLORS = "cividis"  # its lightness grows with the value, and the colour-blind see it like others
_DARK = 55.0
"""Below this percentage the color is dark, so that the text is white."""

_CELL = 0.95
_NARROWEST = 4.0
"""Inches of the narrowest heat map, unless the options set a width: its heading needs room."""
_NUMBER, _SLANTED = 0.26, 0.3
"""Inches of a cell for a number with a decimal, and for slanted names of columns; narrower cells have vertical ones."""
_READABLE = 4.5
"""Points of the smallest text; remarks that need a smaller one are left out."""


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
    meaning: str = ", which is below it",
) -> Figure:
    """Draw percentages as a heat map.

    Args:
        figure_data: describes the runs.
        title: the quantity that the figure shows; `{below}` stands where it says what the remarks are.
        values: percentages, `[rows, columns]`; NaN: no result.
        remarks: a short text below each number, `[rows, columns]`; left out if the cells are too narrow.
        rows: the names of the rows.
        columns: the names of the columns.
        options: the size, and whether there is a heading.
        framed: the cells with a frame, as row and column.
        meaning: what `{below}` stands for.
    """
    widest = max((len(word) for line in remarks for word in line), default=0)
    room = LETTER * max(map(len, rows), default=0)
    cell = max(_CELL, 0.055 * widest + 0.12)
    width = options.width or max(cell * len(columns) + room + 1.2, _NARROWEST)
    if room > width / 3:  # long names of rows in a narrow figure
        rows = [wrapped(row, int(width / 3 / LETTER)) for row in rows]
        room = LETTER * max(len(line) for row in rows for line in row.split("\n"))
    page, cell = Page(figure_data, options), (width - room - 1.2) / len(columns)
    # A number with a decimal takes four letters; in cells without room for it, percentages are whole numbers.
    whole = cell < _NUMBER
    size = min(8.5, 72 * cell / (1.6 if whole else 2.9))
    remark_size = min(6.2, 72 * cell / (0.66 * max(widest, 1)))
    remarked = remark_size >= _READABLE
    slanted = cell > _SLANTED
    lines = max((row.count("\n") + 1 for row in rows), default=1)
    height = max(0.42, 0.14 * lines) * len(rows) + 0.3 + LETTER * (0.6 if slanted else 1.1) * max(map(len, columns))
    with mpl.rc_context({**RC, "axes.grid": False}):
        axes = page.panel(title.format(below=meaning * remarked), width=width, height=height)
        image = axes.imshow(
            values, cmap=mpl.colormaps[_COLORS].with_extremes(bad="#eeeeee"), vmin=0, vmax=100, aspect="auto"
        )
        for row, line in enumerate(values):
            for column, value in enumerate(line):
                color = "white" if value < _DARK else "black"
                number = "–" if np.isnan(value) else f"{value:.{0 if whole else 1}f}"
                remark = remarks[row][column] if remarked else ""
                up = -0.13 if remark else 0.0
                axes.text(column, row + up, number, ha="center", va="center", color=color, fontsize=size)
                axes.text(column, row + 0.24, remark, ha="center", va="center", color=color, fontsize=remark_size)
        for row, column in framed:
            frame = Rectangle(
                (column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="#D55E00", linewidth=1.8, clip_on=False
            )
            axes.add_patch(frame)
        slant = 30 if slanted else 90
        axes.set_xticks(range(len(columns)), columns, rotation=slant, ha="right", rotation_mode="anchor")
        if not slanted:
            axes.tick_params(axis="x", labelsize=max(_READABLE, min(8.5, 60 * cell)))
        axes.set_yticks(range(len(rows)), rows)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        page.figure.colorbar(image, ax=axes, label="test accuracy (%)", pad=0.01, aspect=12)
    return page.figure


_SENDERS = ("byzantine", "honest")


@mpl.rc_context(RC)
def draw_entered(study: Study, options: PlotOptions) -> Figure | None:
    """Draw the shares over all rows and seeds: a column per attack, Byzantine blocks above, honest ones below.

    Returns:
        The figure; None if no record has the counts, or no block was attacked.
    """
    entered, page = study.entered, Page(study.figure_data, options, study.rules)
    attacked = set(entered["attack"][entered["byzantine_sent"] > 0])
    attacks = [attack for attack in study.attacks if attack in attacked]
    if not attacks:
        return None
    rules = [rule for rule in study.rules if (entered["rule"] == rule).any()]
    unknown = [named(rule, options) for rule in study.rules if rule not in rules]
    title, names = "blocks that entered the model, of those sent", [named(attack, options) for attack in attacks]
    title += f"; unknown of {', '.join(unknown)}" * bool(unknown)
    grid = page.panels(title, names, x="round", y=["Byzantine (%)", "honest (%)"], height=1.6, columns=5)
    for both, attack in zip(grid, attacks, strict=True):
        for axes, sender in zip(both, _SENDERS, strict=True):
            for position, rule in enumerate(rules):
                rows = entered[(entered["attack"] == attack) & (entered["rule"] == rule)].sort_values("round")
                sent = rows[f"{sender}_sent"].to_numpy(np.float64)
                share = 100 * rows[f"{sender}_entered"].to_numpy(np.float64) / np.where(sent > 0, sent, np.nan)
                look = page.looks[rule].options | {"linewidth": 1.1}
                marks = markers(len(rows), position, len(rules))
                axes.plot(rows["round"], share, markevery=marks, clip_on=False, **look)
    first = grid[0][0]
    first.set(ylim=(-3, 103))
    first.set_xlim(left=0)
    first.xaxis.set_major_locator(MaxNLocator("auto", integer=True))
    return page.legend([Line2D([], [], label=named(rule, options), **page.looks[rule].options) for rule in rules])
