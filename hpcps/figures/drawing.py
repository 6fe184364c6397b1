"""Draws all figures of an experiment's table, with options."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from hpcps.figures.curve_figures import (
    AGAINST,
    draw_acceptance,
    draw_accuracy,
    draw_classes,
    draw_counts,
    draw_staleness,
)
from hpcps.figures.figure_data import FigureData
from hpcps.figures.from_table import figure_data_of
from hpcps.figures.labels import suffixes
from hpcps.figures.options import PlotOptions, plot_options
from hpcps.figures.selection import select


def figures(frame: pd.DataFrame, baseline: pd.DataFrame | None = None, **options: Any) -> dict[str, Figure]:
    """Draw the figures of the table of `hpcps collect`; return them by name, such as `accuracy_by_epoch`.

    Args:
        frame: the table.
        baseline: the table of a further experiment, shown for reference.
        options: the fields of `PlotOptions`, such as `lines=["zeno", "average"]` or `width=3.4`.

    Raises:
        RunError: the table has no evaluations, or the options have mistakes.
    """
    return dict(draw_all(figure_data_of(frame, baseline), plot_options(options)))


def draw_all(shown: Sequence[FigureData], options: PlotOptions) -> Iterator[tuple[str, Figure]]:
    """Yield the name and the figure of each figure of each variant; the names of several variants have suffixes.

    The figures are accuracy by epoch, wall time and bytes, and likewise the perplexity of text; the acceptance rate of
    rules with a reference; the accuracy by class, of runs with an evaluator and of those that `hpcps evaluate` has
    evaluated; and for asynchronous training the staleness of applied updates and their number by worker.
    """
    endings = suffixes([figure_data.variant for figure_data in shown])
    for figure_data, suffix in zip(select(shown, options), endings, strict=True):
        for name, figure in _figures(figure_data, options):
            yield f"{name}{suffix}", figure


def _figures(figure_data: FigureData, options: PlotOptions) -> Iterator[tuple[str, Figure]]:
    if not figure_data.curves:
        return  # the chosen lines and panels are those of another variant
    for against in AGAINST:
        yield f"accuracy_by_{against}", draw_accuracy(figure_data, against, options)
        if figure_data.perplexed:
            yield f"perplexity_by_{against}", draw_accuracy(figure_data, against, options, measure="perplexity")
    if figure_data.scored:
        yield "acceptance_by_epoch", draw_acceptance(figure_data, options)
    if figure_data.classes:
        yield "accuracy_by_class", draw_classes(figure_data, options)
    if figure_data.applied:
        yield "staleness", draw_staleness(figure_data, options)
        yield "updates_by_worker", draw_counts(figure_data, options)
