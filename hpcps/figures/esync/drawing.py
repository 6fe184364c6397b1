"""Draws the figures that compare methods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hpcps.errors import RunError
from hpcps.figures import accuracy
from hpcps.figures.curve import Range
from hpcps.figures.esync.bars import Number, bar_handles, draw_bars
from hpcps.figures.esync.comparison import Comparison
from hpcps.figures.esync.rates import Rates
from hpcps.figures.names import suffixes
from hpcps.figures.options import PlotOptions
from hpcps.figures.page import RC, legend, line_name, page, panel_grid, panel_title, used
from hpcps.figures.selection import select
from hpcps.figures.style import Look, looks

_UNITS = ((1.0, "B/s"), (1e3, "kB/s"), (1e6, "MB/s"), (1e9, "GB/s"))


def draw_comparisons(comparisons: Sequence[Comparison], options: PlotOptions) -> Iterator[tuple[str, Figure]]:
    """Yield the name and the figure of each figure of each variant: accuracy, throughput, traffic, computing time.

    Raises:
        RunError: there is no method or panel that the options choose, or it has no result yet.
    """
    chosen = select([comparison.figure_data for comparison in comparisons], options)
    if not any(figure_data.curves for figure_data in chosen):
        raise RunError("no method that the options choose has a result yet")
    endings = suffixes([comparison.figure_data.variant for comparison in comparisons])
    for whole, figure_data, suffix in zip(comparisons, chosen, endings, strict=True):
        if not figure_data.curves:
            continue  # the chosen methods and panels are those of another variant
        kept = {
            panel: tuple(one for line in figure_data.lines for one in whole.rates.get(panel, ()) if one.line == line)
            for panel in figure_data.panels
        }
        shown = Comparison(figure_data, {panel: lines for panel, lines in kept.items() if lines})
        yield f"esync_accuracy{suffix}", accuracy.draw(replace(figure_data, line_key="outside"), "wall_time", options)
        if shown.rates:
            yield f"esync_throughput{suffix}", draw_throughput(shown, options)
            yield f"esync_computing{suffix}", draw_computing(shown, options)
        if any(np.isfinite(one.traffic.mean).any() for lines in shown.rates.values() for one in lines):
            yield f"esync_traffic{suffix}", draw_traffic(shown, options)


def draw_throughput(shown: Comparison, options: PlotOptions) -> Figure:
    """Draw the samples per second of all workers together."""
    return _draw_groups(shown, "throughput", "samples per second", lambda one: one.throughput, options)


def draw_traffic(shown: Comparison, options: PlotOptions) -> Figure:
    """Draw the bytes per second that the workers send: updates, gradients and queries, with their headers."""
    largest = max(np.nanmax(one.traffic.mean, initial=0.0) for lines in shown.rates.values() for one in lines)
    unit, symbol = [pair for pair in _UNITS if pair[0] <= largest or pair[0] == 1.0][-1]

    def scaled(one: Rates) -> Range:
        return Range.of(one.traffic.seeds / unit)

    return _draw_groups(shown, "traffic from the workers", f"sent by the workers ({symbol})", scaled, options)


def draw_computing(shown: Comparison, options: PlotOptions) -> Figure:
    """Draw the share of the time that each worker computes: a panel per panel, a group of bars for each worker."""
    figure_data, styles, lines = shown.figure_data, *_lines(shown)
    most = max(len(one.workers) for methods in shown.rates.values() for one in methods)
    sized = options if options.columns else options.model_copy(update={"columns": 2 if most * len(lines) > 8 else 4})
    rows, columns = panel_grid(len(shown.rates), sized)
    with mpl.rc_context(RC):
        figure, grid = page(figure_data, "computing time", rows, columns, sized, shared={"sharey": True})
        axes = used(grid, len(shown.rates))
        for place, (panel, methods) in enumerate(shown.rates.items()):
            workers = max((one.workers for one in methods), key=len)
            for one in methods:
                middles = np.arange(len(one.workers), dtype=np.float64)
                draw_bars(axes[place], lines, [one], middles, _computing, styles, options)
            _name_groups(axes[place], workers, "worker")
            axes[place].set_title(panel_title(figure_data, panel, options))
            if place % columns == 0:
                axes[place].set_ylabel("computing (% of the time)")
        axes[0].set_ylim(0, 100)
        everything = [one for methods in shown.rates.values() for one in methods]
        legend(figure, _handles(shown, lines, everything, _computing, styles, options))
    return figure


def _computing(one: Rates) -> Range:
    return one.computing


def _draw_groups(shown: Comparison, title: str, label: str, number: Number, options: PlotOptions) -> Figure:
    """Draw a group of bars for each panel."""
    figure_data, styles, lines = shown.figure_data, *_lines(shown)
    everything = [one for methods in shown.rates.values() for one in methods]
    width = max(4.8, 1.2 + 0.5 * len(lines) * len(shown.rates))
    sized = options.model_copy(update={"width": options.width or width})
    largest = max(np.nanmax(number(one).mean, initial=0.0) for one in everything)
    with mpl.rc_context(RC):
        figure, grid = page(figure_data, title, 1, 1, sized, shared={}, height=2.6)
        axes = grid[0, 0]
        for place, methods in enumerate(shown.rates.values()):
            middle = np.array([float(place)])
            draw_bars(axes, lines, methods, middle, number, styles, options, digits=",.0f" if largest >= 100 else ".3g")
        names = [panel_title(figure_data, panel, options) for panel in shown.rates]
        _name_groups(axes, names, "")
        axes.set_ylabel(label)
        axes.margins(y=0.12)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(mpl.ticker.StrMethodFormatter("{x:,g}"))
        legend(figure, _handles(shown, lines, everything, number, styles, options))
    return figure


def _lines(shown: Comparison) -> tuple[dict[str, Look], list[str]]:
    """Return the style of each method, and the methods that have rates."""
    drawn = {one.line for methods in shown.rates.values() for one in methods}
    return looks(shown.figure_data.palette), [line for line in shown.figure_data.lines if line in drawn]


def _handles(
    shown: Comparison, lines: Sequence[str], methods: Sequence[Rates], number: Number, styles: dict[str, Look],
    options: PlotOptions,
) -> list[Artist]:  # fmt: skip
    names = {line: line_name(replace(shown.figure_data, line_key="outside"), line, options) for line in lines}
    handles = bar_handles(names, methods, number, styles, options)
    diverged = {f"{one.line}: {one.diverged_seeds} of {one.seeds}" for one in methods if one.diverged_seeds}
    if diverged:
        label = f"† diverged seeds: {'; '.join(sorted(diverged))}"
        handles.append(Line2D([], [], linestyle="none", label=label))
    return handles


def _name_groups(axes: Axes, names: Sequence[str], label: str) -> None:
    """Write the names of the groups below them; long names of workers are slanted."""
    long = max(len(name) for name in names) > 6 and bool(label)
    slant: dict[str, Any] = {"rotation": 30, "ha": "right", "rotation_mode": "anchor"} if long else {}
    axes.set_xticks(range(len(names)), names, **slant)
    axes.tick_params(axis="x", length=0)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel("" if long else label)
