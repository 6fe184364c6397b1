"""The table and the figure of a search: the score of every configuration by the values that it tried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter

from hpcps.figures.final import aligned_table
from hpcps.figures.labels import of_key
from hpcps.figures.page import RC, heading_lines, legend
from hpcps.figures.style import Look, looks
from hpcps.records.search import ConfigurationScore
from hpcps.spec.problems import quote
from hpcps.spec.search import GridSearch, HalvingSearch
from hpcps.spec.search_groups import SearchGroup

Found = Sequence[tuple[SearchGroup, Sequence[ConfigurationScore]]]
"""The groups of a search, and the scores of their configurations: the last rung first, in each the best first."""

_WIDE = 100.0
"""Values with a larger ratio of the greatest to the smallest have a logarithmic axis."""

_LOST: dict[str, Any] = {"marker": "x", "markersize": 6, "markeredgewidth": 1.6}
_CHOSEN: dict[str, Any] = {"marker": "o", "markersize": 11, "markeredgewidth": 1.4, "fillstyle": "none"}


def describe(group: SearchGroup) -> str:
    """Describe how the configurations of a group are evaluated and chosen."""
    search, points = group.search, group.configurations[0].rungs[0]
    seeds = len({point.run.seed for point in points})
    cases = len(points) // seeds
    facts = [f"{search.kind}: {search.score} on {100 * search.holdout:g} % of the training samples, held out"]
    epochs = [str(point.run.train.epochs) for point, *_ in group.configurations[0].rungs]
    facts.append(f"after {' / '.join(epochs)} epoch{'s' * (epochs != ['1'])}")
    if cases > 1:
        facts.append(f"{'worst' if search.over == 'worst' else 'mean'} of {cases} points")
    if seeds > 1:
        facts.append(f"mean of {seeds} seeds")
    return ", ".join(facts)


def table(found: Found) -> str:
    """Return a Markdown table for each group: a row for each configuration, the chosen one in bold."""
    parts = []
    for group, scores in found:
        halving = isinstance(group.search, HalvingSearch)
        keys = list(group.configurations[0].values)
        head = [*keys, *(["epochs"] if halving else []), "accuracy (%)", "loss", "runs", "lost"]
        rows = [head]
        for score in scores:
            configuration = group.configurations[score.place]
            cells = [quote(configuration.values[key]) for key in keys]
            cells += [str(configuration.rungs[score.rung][0].run.train.epochs)] if halving else []
            cells += [
                _number(100 * score.accuracy, ".2f"),
                _number(score.loss, ".4g"),
                str(len(score.runs)),
                _lost(score),
            ]
            rows.append([f"**{cell}**" for cell in cells] if score is scores[0] and score.has_score else cells)
        title = f"**{group.label}**: " if group.label else ""
        parts.append(f"{title}{describe(group)}\n\n{aligned_table(rows)}\n")
    return "\n".join(parts)


def _number(value: float, form: str) -> str:
    return f"{value:{form}}" if np.isfinite(value) else "–"


def _lost(score: ConfigurationScore) -> str:
    reasons = [run.lost for run in score.runs if run.lost]
    return ", ".join(f"{reasons.count(reason)} {reason}" for reason in dict.fromkeys(reasons)) or "0"


@mpl.rc_context(RC)
def draw(name: str, found: Found) -> Figure:
    """Draw the score of every configuration: a panel for each searched key, a line for each group.

    A line goes through the best score at each value of its key. Configurations of which all runs are lost are crosses
    at the lower end.

    Args:
        name: the name of the experiment.
        found: the groups, at least one, and their scores.
    """
    first = found[0][0]
    keys = list(first.configurations[0].values)
    width = max(4.8, 3.4 * len(keys) + 0.6)
    heading = heading_lines([f"{name}: search of {', '.join(keys)}", describe(first)], width)
    figure = Figure(figsize=(width, 3.2 + 0.16 * len(heading)), layout="constrained")
    figure.suptitle("\n".join(heading), fontsize=9)
    grid = figure.subplots(1, len(keys), squeeze=False, sharey=True)[0]
    styles = looks([group.label for group, _ in found])
    for axes, key in zip(grid, keys, strict=True):
        places = _places(
            axes, key, [configuration.values[key] for group, _ in found for configuration in group.configurations]
        )
        for group, scores in found:
            _line(axes, key, group, scores, places, styles[group.label])
        axes.set_xlabel(of_key(key))
    by_accuracy = first.search.score == "accuracy"
    grid[0].set_ylabel(f"held-out {'accuracy (%)' if by_accuracy else 'loss'}")
    if not any(score.has_score for _, scores in found for score in scores):
        # Without a value matplotlib would choose an axis around 0.
        grid[0].set(ylim=(0, 100)) if by_accuracy else grid[0].set(yticks=[])
    handles: list[Artist] = [
        Line2D([], [], label=group.label or "best at each value", **styles[group.label].options) for group, _ in found
    ]
    handles.append(Line2D([], [], color="#555555", linestyle="none", label="chosen", **_CHOSEN))
    if any(not score.has_score for _, scores in found for score in scores):
        handles.append(Line2D([], [], color="#555555", linestyle="none", label="lost: diverged or failed", **_LOST))
    legend(figure, handles)
    return figure


def _places(axes: Axes, key: str, values: Sequence[Any]) -> Mapping[str, float]:
    """Prepare the x axis of a key; return the place of each value, by its text."""
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(values):
        texts = list(dict.fromkeys(map(quote, values)))
        axes.set_xticks(range(len(texts)), texts)
        return {text: float(place) for place, text in enumerate(texts)}
    if min(numbers) > 0 and (key.split(".")[-1] == "lr" or max(numbers) > _WIDE * min(numbers)):
        axes.set_xscale("log", base=10)
        axes.xaxis.set_minor_formatter(NullFormatter())
    return {quote(value): float(value) for value in values}


def _line(
    axes: Axes,
    key: str,
    group: SearchGroup,
    scores: Sequence[ConfigurationScore],
    places: Mapping[str, float],
    look: Look,
) -> None:
    by_accuracy = group.search.score == "accuracy"
    last = {score.place: score for score in reversed(scores)}  # of several rungs, the last
    points = []
    for place, score in sorted(last.items()):
        x = places[quote(group.configurations[place].values[key])]
        if not score.has_score:
            axes.plot(x, 0.03, color=look.color, transform=axes.get_xaxis_transform(), clip_on=False, zorder=4, **_LOST)
            continue
        y = 100 * score.accuracy if by_accuracy else score.loss
        points.append((x, y))
        if score is scores[0]:
            axes.plot(x, y, color=look.color, clip_on=False, zorder=5, **_CHOSEN)
    best = dict(sorted(points, key=lambda point: (point[0], point[1] if by_accuracy else -point[1])))
    # Drawn configurations with neighbouring values of this key differ in the others too: a line would mean nothing.
    apart = len(group.configurations[0].values) > 1 and not isinstance(group.search, GridSearch)
    if not best:
        return  # a line without points has no place, so the layout would fail
    axes.plot([*best], [*best.values()], clip_on=False, **look.options | ({"linestyle": "none"} if apart else {}))
    if len(best) < len(points):
        axes.plot(*np.transpose(points), linestyle="none", marker=".", color=look.color, alpha=0.5, zorder=1.5)
