"""The layout of a figure: a heading that describes the runs, a grid of panels, and a legend; and its files."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from hpcps.figures.curve import Curve, Range, Values
from hpcps.figures.figure_data import FigureData
from hpcps.figures.labels import SEPARATOR, of_key, of_panel, of_value
from hpcps.figures.options import PlotOptions
from hpcps.figures.style import Look, looks

RC: dict[Any, Any] = {
    "font.size": 8.5,
    "axes.titlesize": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "pdf.fonttype": 42,  # text stays text in the PDF
}
"""matplotlib's settings for every figure; draw everything with them."""

WIDEST = 4
"""Panels side by side."""

_MARKERS = 7
_ENTRY = 0.95
LETTERS = 12
"""Letters of the heading in an inch of the width of a figure."""
LETTER = 0.068
"""Inches of a letter beside an axis."""
_TITLE_LETTERS = 13
"""Letters of a panel's title in an inch of its width."""
_LABEL_LETTERS = 15
"""Letters of the label of an axis in an inch of its length."""
_NARROWEST = 1.5
"""Inches of the narrowest panel beside others, if the width of the figure is set but not the number of columns."""
_OPEN_END: dict[str, Any] = {"marker": ">", "markersize": 6.5, "markerfacecolor": "white"}
_ROWS, _ROW = 3, 0.17
"""Rows of a legend for which a page has room, and the inches of a further row."""


_HATCHES = ("", "////", "....", "xxxx", "++++")


def line_looks(data: FigureData) -> dict[str, Look]:
    """Return the style of each line and reference of some figure data: lines of one rule have the same."""
    rules = data.rules
    first = {rule: line for line, rule in reversed(rules.items())}
    found = looks([*dict.fromkeys(first[rule] for rule in rules.values())], [curve.line for curve in data.references])
    return {**{line: found[first[rule]] for line, rule in rules.items()}, **found}


def _of_patch(bar: Mapping[str, Any]) -> dict[str, Any]:
    """Return the style of bars as that of a patch of the legend, of which `color` would also be the edge."""
    return {("facecolor" if name == "color" else name): value for name, value in bar.items()}


class Page:
    """A figure of an experiment: a heading that describes the runs, a grid of panels, and a legend.

    Attributes:
        data: the data; the heading describes its runs.
        options: the size, the statistic of the seeds, the names of lines and panels, and whether there is a heading.
        looks: the style of each line.
        figure: the figure, after `panels` or `panel` has made it.
    """

    figure: Figure

    def __init__(
        self, data: FigureData, options: PlotOptions | None = None, lines: Sequence[str] | None = None
    ) -> None:
        """Take the data.

        Args:
            data: the data.
            options: the options; by default the usual ones.
            lines: the lines that have a style; by default those of the data.
        """
        self.data, self.options = data, options or PlotOptions()
        self.looks = line_looks(data) if lines is None else looks(lines)

    def panel(self, title: str, *, width: float, height: float) -> Axes:
        """Make the figure with a single panel, whose title is that of the heading; return its axes.

        Args:
            title: the quantity that the figure shows.
            width: inches of the figure, if the options do not set it.
            height: inches of the panel, if the options do not set it.
        """
        axes: Axes = self._grid(title, 1, 1, height, self.options.width or width)[0, 0]
        return axes

    def panels(
        self,
        title: str,
        names: Sequence[str],
        *,
        x: str,
        y: Sequence[str],
        height: float = 2.2,
        columns: int = WIDEST,
        sharex: bool = True,
    ) -> list[tuple[Axes, ...]]:
        """Make the figure with a panel for each name.

        With several y axes, a panel is several axes, one below the other; without another panel, side by side.

        Args:
            title: the quantity that the figure shows.
            names: the titles of the panels.
            x: the label of the x axes.
            y: the labels of the y axes.
            height: inches of a row, if the options do not set it.
            columns: panels side by side, if the options do not set it.
            sharex: whether the panels share the x axis.

        Returns:
            The axes of each panel.
        """
        fit = columns if self.options.width is None else max(1, min(columns, int(self.options.width / _NARROWEST)))
        widest, halves = self.options.columns or fit, len(y)
        bands = -(-len(names) // widest)
        across = -(-len(names) // bands)
        one_row = halves > 1 and len(names) == 1 and widest > 1
        rows, columns = (1, halves) if one_row else (halves * bands, across)
        width = self.options.width or max((2.35 if columns > 2 else 3.1) * columns + 0.5, 4.8)
        grid = self._grid(title, rows, columns, height, width, sharex=sharex, sharey=True)
        grid_columns = columns
        # A row for each panel.
        grid = grid.reshape(-1, halves, across).swapaxes(1, 2).reshape(-1, halves)
        for spare in grid[len(names) :].flat:
            spare.remove()
        found = [tuple(axes) for axes in grid[: len(names)]]
        for number, axes in enumerate(found):
            axes[0].set_title(wrapped(names[number], int(_TITLE_LETTERS * (width - 0.5) / grid_columns)))
            for each, label in zip(axes, y if number % across == 0 else (), strict=False):
                each.set_ylabel(label)
                each.tick_params(labelleft=True)
            for each in (axes if one_row else axes[-1:]) if number + across >= len(found) else ():
                each.set_xlabel(wrapped(x, int(_LABEL_LETTERS * (width - 0.5) / grid_columns)))
                each.tick_params(labelbottom=True)
        return found

    def _grid(
        self,
        title: str,
        rows: int,
        columns: int,
        height: float,
        width: float,
        *,
        sharex: bool = False,
        sharey: bool = False,
    ) -> NDArray[Any]:
        """Make the figure; return its axes, `[rows, columns]`."""
        data = self.data
        texts = (f"{data.experiment}: {title}", data.facts, data.remark, data.not_reduced)
        heading = heading_lines(texts, width) if self.options.heading else []
        size = (width, (self.options.height or height) * rows + 0.8 + 0.16 * len(heading))
        self.figure = Figure(figsize=size, layout="constrained")
        if heading:
            self.figure.suptitle("\n".join(heading), fontsize=9)
        return self.figure.subplots(rows, columns, squeeze=False, sharex=sharex, sharey=sharey)

    def title(self, panel: str) -> str:
        """Return the title of a panel; `panels` wraps it."""
        return self.options.names.get(panel) or of_panel(self.data.panel_keys, panel)

    def name(self, line: str) -> str:
        """Return the name of a line in the legend."""
        return self.options.names.get(line) or (
            of_value(line) if line in self.data.lines and self.data.line_key != "outside" else line.replace("_", " ")
        )

    def line_handles(self, lines: Sequence[str]) -> list[Artist]:
        """Return the legend's handles of some lines."""
        names = {self.entry(line): line for line in reversed(lines)}  # one entry for a rule, where it is first
        ordered = sorted(names.items(), key=lambda item: lines.index(item[1]))
        return [Line2D([], [], label=name, **self.looks[line].options) for name, line in ordered]

    def entry(self, line: str) -> str:
        """Return the name of a line in the legend, which lines of the same rule share."""
        rule = self.data.rules.get(line, line)
        return self.name(line) if rule == line or line in self.options.names else rule.replace("_", " ")

    def bar(self, line: str) -> dict[str, Any]:
        """Return the style of the bars of a line: its colour, and a hatch if an earlier line has the same colour."""
        color, earlier = self.looks[line].color, []
        for other, look in self.looks.items():
            if other == line:
                break
            earlier += [other] if look.color == color and look is not self.looks[line] else []
        hatch = _HATCHES[len(earlier) % len(_HATCHES)]
        return {"color": color, "hatch": hatch, "edgecolor": "white", "linewidth": 0}

    def bar_handles(self, lines: Sequence[str], band: str = "") -> list[Artist]:
        """Return the legend's handles of the bars of some lines, and of the band of their seeds if it is described."""
        handles: list[Artist] = [
            Patch(**_of_patch(self.bar(line)), label=self.name(line)) for line in dict.fromkeys(lines)
        ]
        if band:
            handles.append(Line2D([], [], color="#555555", linestyle="none", marker="|", markersize=9, label=band))
        return handles

    def legend(self, handles: Sequence[Artist]) -> Figure:
        """Add the legend, whose title says what the lines are; return the figure."""
        legend(self.figure, handles, of_key(self.data.line_title))
        return self.figure

    def draw_curve(
        self, axes: Axes, curve: Curve, x: Any, values: Range, place: tuple[int, int], look: Look | None = None
    ) -> None:
        """Draw the mean of the seeds of a line, their band, and the signs of diverged, stalled and unfinished seeds.

        Args:
            axes: where.
            curve: the line.
            x: `[epochs]`.
            values: `[epochs]`.
            place: the position of the line in the panel, and the number of lines there.
            look: the style of the line, if it is not its own.
        """
        look = look or self.looks[curve.line]
        band(axes, x, values, look, self.options)
        # A line at 0 or 100 % keeps its width.
        marks = markers(len(x), *place)
        axes.plot(x, values.mean, label=curve.line, markevery=marks, clip_on=False, **look.options)
        mark_seeds(axes, x, values.mean, curve, look)
        if not curve.finished and len(x):
            axes.plot(x[-1], values.mean[-1], color=look.color, clip_on=False, zorder=5, **_OPEN_END)

    def draw_bars(self, axes: Axes, line: str, x: Values, values: Range, width: float) -> Values:
        """Draw bars of the means of several seeds, with the bands; return the upper ends, `[bars]`."""
        axes.bar(x, values.mean, width, **self.bar(line), label=line)
        low, high = self.options.band_limits(values)
        if not np.any(low != high):
            return values.mean
        reach = values.mean - low, high - values.mean
        axes.errorbar(x, values.mean, reach, fmt="none", ecolor="#555555", elinewidth=0.8)
        return np.maximum(values.mean, high)


def wrapped(text: str, letters: int) -> str:
    """Wrap a text between words to lines of at most so many letters; its own line breaks stay."""
    width, lines = max(1, letters), text.split("\n")
    return "\n".join(
        part
        for line in lines
        for part in textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False) or [""]
    )


def heading_lines(texts: Iterable[str], width: float) -> list[str]:
    """Return the lines of a heading of some texts: broken between facts, and in a fact only between words.

    Args:
        texts: each begins a line; facts in a text are separated by ` · `.
        width: the inches of the figure.
    """
    letters, found = max(1, int(LETTERS * width)), []
    for text in filter(None, texts):
        lines = [""]
        for fact in text.split(SEPARATOR):
            longer = SEPARATOR.join(filter(None, [lines[-1], fact]))
            if len(longer) <= letters:
                lines[-1] = longer
            else:
                lines += wrapped(fact, letters).split("\n")
        found += list(filter(None, lines))
    return found


def legend(figure: Figure, handles: Sequence[Artist], title: str = "") -> None:
    """Name every line once, below all panels."""
    if handles:
        letters = int((figure.get_figwidth() - 0.65) / 0.065)
        for handle in handles:
            handle.set_label(wrapped(str(handle.get_label()), letters))
        longest = max(len(line) for handle in handles for line in str(handle.get_label()).split("\n"))
        entry = max(_ENTRY, 0.65 + 0.065 * longest)
        rows = -(-len(handles) // max(1, int(figure.get_figwidth() / entry)))
        figure.set_figheight(figure.get_figheight() + _ROW * max(0, rows - _ROWS))
        figure.legend(
            handles=list(handles),
            loc="outside lower center",
            ncols=-(-len(handles) // rows),
            handlelength=3.2,
            title=title or None,
        )


_SIGNS: Mapping[str, Mapping[str, Any]] = {
    "diverged": {"marker": "x", "markersize": 8, "markeredgewidth": 2.2},
    "stalled": {"marker": "o", "markersize": 10, "markeredgewidth": 1.6, "fillstyle": "none"},
}


def mark_seeds(axes: Axes, x: Any, y: Any, curve: Curve, look: Look) -> None:
    """Draw a cross where the first seed of a line diverged, a circle around the end of a line with stalled seeds, and
    the number of these seeds beside it.
    """
    if curve.diverged is not None:
        _mark(axes, x, y, curve.diverged, curve.share_diverged, look, "diverged")
    if curve.stalled_seeds and len(x):
        _mark(axes, x, y, len(x) - 1, curve.share_stalled, look, "stalled")


def _mark(axes: Axes, x: Any, y: Any, at: int, share: str, look: Look, sign: str) -> None:
    place = x[at], y[at]
    axes.plot(*place, color=look.color, clip_on=False, zorder=5, **_SIGNS[sign])
    late = place[0] > np.max(x) / 2
    axes.annotate(
        share,
        place,
        xytext=(-7 if late else 7, 4),
        textcoords="offset points",
        ha="right" if late else "left",
        fontsize=7,
        color=look.color,
    )


def sign_handles(curves: Sequence[Curve]) -> list[Artist]:
    """Return the legend's handles of the crosses, circles and open triangles, if there are any."""
    shares = {
        "diverged": [curve.share_diverged for curve in curves if curve.diverged is not None],
        "stalled": [curve.share_stalled for curve in curves if curve.stalled_seeds],
    }
    signs = {f"{sign}{' (k of n seeds)' * any(found)}": _SIGNS[sign] for sign, found in shares.items() if found}
    if any(not curve.finished for curve in curves):
        signs["not finished"] = _OPEN_END
    return [Line2D([], [], color="#555555", linestyle="none", label=label, **sign) for label, sign in signs.items()]


def save(figure: Figure, stem: Path) -> list[Path]:
    """Write a figure as PNG and PDF; return the files."""
    files = [stem.with_name(f"{stem.name}.{ending}") for ending in ("png", "pdf")]
    for file in files:
        # No creation date: the same table gives the same file.
        metadata = {"CreationDate": None} if file.suffix == ".pdf" else {}
        with mpl.rc_context(RC):
            figure.savefig(file, dpi=180, metadata=metadata)
    return files


def markers(points: int, position: int, lines: int) -> tuple[int, int]:
    """Return the first point of a line that has a marker, and the points to the next one; lines differ in the first."""
    gap = max(1, points // _MARKERS)
    return position * gap // max(1, lines), gap


def band(axes: Axes, x: Any, values: Range, look: Look, options: PlotOptions) -> None:
    """Draw the range of several seeds, or another statistic of them."""
    low, high = options.band_limits(values)
    if np.any(low != high):
        axes.fill_between(x, low, high, color=look.color, alpha=0.15, linewidth=0)
