"""The figures and the table that compare methods."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from hpcps.errors import RunError
from hpcps.figures.curve import Curve, Range, Values
from hpcps.figures.drawing import draw_accuracy
from hpcps.figures.final import aligned_table, heading, plain
from hpcps.figures.labels import suffixes
from hpcps.figures.method_comparison import STANDALONE, Comparison, Rates
from hpcps.figures.options import PlotOptions, select
from hpcps.figures.page import RC, WIDEST, Page
from hpcps.records.inventory import enumerated

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
        yield f"esync_accuracy{suffix}", draw_accuracy(replace(figure_data, line_key="outside"), "wall_time", options)
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


@mpl.rc_context(RC)
def draw_computing(shown: Comparison, options: PlotOptions) -> Figure:
    """Draw the share of the time that each worker computes: a panel per panel, a group of bars for each worker."""
    page, lines = _page(shown, options), _lines(shown)
    most = max(len(one.workers) for methods in shown.rates.values() for one in methods)
    names, y = [*map(page.title, shown.rates)], "computing (% of the time)"
    widest = 2 if most * len(lines) > 8 else WIDEST
    grid = page.panels("computing time", names, x="", y=[y], columns=widest, sharex=False)
    for (axes,), methods in zip(grid, shown.rates.values(), strict=True):
        workers = max((one.workers for one in methods), key=len)
        for one in methods:
            middles = np.arange(len(one.workers), dtype=np.float64)
            _draw_bars(page, axes, lines, [one], middles, _computing)
        _name_groups(axes, workers, "worker")
    grid[0][0].set_ylim(0, 100)
    return page.legend(_handles(page, shown, lines, _computing))


def _computing(one: Rates) -> Range:
    return one.computing


def _draw_groups(shown: Comparison, title: str, label: str, number: Number, options: PlotOptions) -> Figure:
    """Draw a group of bars for each panel."""
    page, lines = _page(shown, options), _lines(shown)
    width = max(4.8, 1.2 + 0.5 * len(lines) * len(shown.rates))
    largest = max(np.nanmax(number(one).mean, initial=0.0) for methods in shown.rates.values() for one in methods)
    with mpl.rc_context(RC):
        axes = page.panel(title, width=width, height=2.6)
        for place, methods in enumerate(shown.rates.values()):
            middle = np.array([float(place)])
            digits = ",.0f" if largest >= 100 else ".3g"
            _draw_bars(page, axes, lines, methods, middle, number, digits=digits)
        _name_groups(axes, [*map(page.title, shown.rates)], "")
        axes.set_ylabel(label)
        axes.margins(y=0.12)
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter(mpl.ticker.StrMethodFormatter("{x:,g}"))
        return page.legend(_handles(page, shown, lines, number))


def _page(shown: Comparison, options: PlotOptions) -> Page:
    """Return the page of a figure; the names of methods are those of the data."""
    return Page(replace(shown.figure_data, line_key="outside"), options)


def _lines(shown: Comparison) -> list[str]:
    """Return the methods that have rates."""
    drawn = {one.line for methods in shown.rates.values() for one in methods}
    return [line for line in shown.figure_data.lines if line in drawn]


def _handles(page: Page, shown: Comparison, lines: Sequence[str], number: Number) -> list[Artist]:
    methods = [one for methods in shown.rates.values() for one in methods]
    bands = [page.options.band_limits(number(one)) for one in methods if one.seeds > 1]
    several = any(np.any(low != high) for low, high in bands)
    label = f"{page.options.band} of {max(one.seeds for one in methods)} seeds" if several else ""
    handles = page.bar_handles(lines, label)
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


Number = Callable[[Rates], Range]
"""Takes from the rates of a method what the bars show, `[groups]`."""

_WIDTH = 0.84


def _draw_bars(
    page: Page,
    axes: Axes,
    lines: Sequence[str],
    methods: Sequence[Rates],
    place: Values,
    number: Number,
    *,
    digits: str = "",
) -> None:
    """Draw the bars of some methods.

    Args:
        page: the figure.
        axes: where.
        lines: all methods: each has its place in a group, so that a missing one leaves a gap.
        methods: the methods to draw.
        place: the middle of each group, `[groups]`.
        number: the heights of the bars.
        digits: the format of the number above each bar; no numbers if it is empty.
    """
    width = _WIDTH / len(lines)
    for one in methods:
        values = number(one)
        x = place + (lines.index(one.line) - (len(lines) - 1) / 2) * width
        top = page.draw_bars(axes, one.line, x, values, 0.9 * width)
        if digits:
            mark = "†" if one.diverged_seeds else ""
            for where, height, value in zip(x, top, values.mean, strict=True):
                text = f"{value:{digits}}{mark}" if np.isfinite(value) else "?"
                axes.annotate(
                    text, (where, height if np.isfinite(height) else 0.0), (0, 2), textcoords="offset points",
                    ha="center", va="bottom", fontsize=7,
                )  # fmt: skip


_MB = 1e6
_ALIKE = 1e-3
"""The share by which samples or seconds may differ that count as equal: messages end at slightly different times."""
_HEAD = ("method", "accuracy (%)", "seconds", "samples/s", "MB/s", "computing (%)", "step ratio")


def comparison_table(shown: Comparison) -> str:
    """Return a Markdown table for each panel, below a description of the runs."""
    data = shown.figure_data
    parts = [heading(data, "methods", data.facts, data.remark)]
    for panel, curves in data.panels.items():
        rates = {one.line: one for one in shown.rates.get(panel, ())}
        equal = _Equal.of(curves, rates)
        head = [*_HEAD[:2], *equal.heads, *_HEAD[2:]]
        rows = [head, *(_row(curve, rates.get(curve.line), equal) for curve in curves)]
        table = aligned_table(rows) if curves else "no result yet"
        parts.append((f"{plain(panel)}\n\n" if panel else "") + table)
    notes = [
        "accuracy: at the end, and at the last evaluation within the fewest samples or seconds of any method",
        "computing: of the worker that computes least and of the one that computes most",
        "step ratio: the mean local step of the slowest worker divided by that of the fastest, as measured",
    ]
    if any(curve.seeds > 1 for curve in data.curves):
        notes.append("[lowest–highest of the seeds]")
    if any(curve.diverged_seeds for curve in data.curves):
        notes.append("† diverged (k of n seeds, which the mean includes)")
    if not all(curve.finished for curve in data.curves):
        notes.append("*: not finished")
    if data.lost:
        notes.append(f"no result yet: {enumerated([label for label, *_ in data.lost], 12)}")
    return "\n\n".join([*parts, "; ".join(notes)]) + "\n"


@dataclass(frozen=True)
class _Equal:
    """The samples and the seconds that all methods of a panel have reached."""

    samples: float
    seconds: float

    @classmethod
    def of(cls, curves: Sequence[Curve], rates: Mapping[str, Rates]) -> _Equal:
        """Return those of the methods with workers."""
        trained = [curve for curve in curves if curve.line in rates and curve.wall.size]
        return cls(
            min((rates[curve.line].samples for curve in trained), default=np.nan),
            min((float(curve.wall[-1]) for curve in trained), default=np.nan),
        )

    @property
    def heads(self) -> tuple[str, str]:
        """The heads of the columns of accuracies."""
        return f"at {self.samples:,.0f} samples (%)", f"at {self.seconds:,.4g} s (%)"

    def accuracies(self, curve: Curve, rates: Rates) -> list[str]:
        """Return the accuracy at these samples, and at these seconds."""
        samples = curve.epoch / curve.epoch[-1] * rates.samples  # a method processes samples at a constant rate
        return [self._at(curve, samples, self.samples), self._at(curve, curve.wall, self.seconds)]

    def _at(self, curve: Curve, reached: Values, limit: float) -> str:
        within = np.flatnonzero(reached <= limit * (1 + _ALIKE))
        return _number(Range.of(curve.accuracy.seeds[:, : within[-1] + 1]), "{:.1f}") if within.size else "–"


def _row(curve: Curve, rates: Rates | None, equal: _Equal) -> list[str]:
    accuracy = _number(curve.accuracy, "{:.1f}") if curve.epoch.size else "–"
    if curve.diverged_seeds:
        accuracy += f" † {curve.diverged_seeds} of {curve.seeds}"
    accuracy += "" if curve.finished else "*"
    seconds = f"{curve.wall[-1]:,.4g}" if curve.wall.size and curve.line != STANDALONE else "–"
    if rates is None or not curve.epoch.size:
        return [curve.line, accuracy, "–", "–", seconds, "–", "–", "–", "–"]
    shares = rates.computing.mean
    traffic = Range.of(rates.traffic.seeds / _MB)
    computing = f"{np.nanmin(shares):.1f} to {np.nanmax(shares):.1f}"
    throughput, sent = _number(rates.throughput, "{:,.4g}"), _number(traffic, "{:.3g}")
    ratio = _number(rates.step_ratio, "{:.3g}")
    return [curve.line, accuracy, *equal.accuracies(curve, rates), seconds, throughput, sent, computing, ratio]


def _number(values: Range, form: str) -> str:
    """Return the last mean and its range over the seeds."""
    mean, low, high = (form.format(part[-1]) for part in (values.mean, values.low, values.high))
    if np.isnan(values.mean[-1]):
        return "–"
    return f"{mean} [{low}–{high}]" if low != high else mean
