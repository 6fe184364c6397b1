"""Writes a report as one HTML file that needs nothing else, with its interactive charts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import numpy as np

import hpcps
from hpcps.errors import RunError
from hpcps.figures.curve import AppliedUpdates, Curve, Range, Values
from hpcps.figures.drawing import AGAINST, measured, x_axis
from hpcps.figures.figure_data import FigureData
from hpcps.figures.final import cells, lines_of, notes, plain
from hpcps.figures.grid_study import study_rows
from hpcps.figures.labels import of_key, of_panel
from hpcps.figures.page import Page, line_looks
from hpcps.figures.report.content import ReportContent
from hpcps.figures.style import Look, looks
from hpcps.records.acceptance import MEANING, STALLED
from hpcps.records.files import write_whole, writing
from hpcps.records.forecast import summary

_SYMBOLS = {
    "o": "circle",
    "s": "square",
    "^": "triangle-up",
    "v": "triangle-down",
    "D": "diamond",
    "P": "cross",
    "X": "x",
    ">": "triangle-right",
}


@dataclass(frozen=True)
class Style:
    """The style of a line in plotly's terms; `dash` is also an SVG dash array, and `symbol` may be empty."""

    color: str
    dash: str
    symbol: str
    width: float


@dataclass(frozen=True)
class Line:
    """One line of a panel.

    Attributes:
        line: its name.
        label: its name for people.
        seeds: the number of runs.
        x: values by the name of the x axis.
        y: mean, and low and high if there are several seeds, by the name of the y axis.
        diverged: the position of the first evaluation of a diverged model; None if no seed has diverged.
        diverged_seeds: the number of diverged seeds.
        stalled_seeds: the number of stalled seeds.
        remark: a further line of the pop-ups; may be empty.
    """

    line: str
    label: str
    seeds: int
    x: Mapping[str, list[float | None]]
    y: Mapping[str, Mapping[str, list[float | None]]]
    diverged: int | None = None
    diverged_seeds: int = 0
    stalled_seeds: int = 0
    remark: str = ""


@dataclass(frozen=True)
class Panel:
    """One chart: the name by which it is filtered, its title and its lines."""

    panel: str
    title: str
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Section:
    """Charts that share their axes.

    Attributes:
        kind: whether they have lines or bars.
        x: the titles of the x axes to choose from, by name.
        y: the titles of the y axes to choose from, by name.
        percent: whether the y axis ends at 100.
        styles: the style of each line.
    """

    title: str
    kind: Literal["lines", "bars"]
    x: Mapping[str, str]
    y: Mapping[str, str]
    percent: bool
    panels: tuple[Panel, ...]
    styles: Mapping[str, Style]

    def data(self) -> dict[str, Any]:
        """Return the section as JSON values."""
        return asdict(self)


def sections(figure_data: FigureData) -> list[Section]:
    """Return the charts of one variant: accuracy, perplexity, callbacks, acceptance, classes, staleness, updates."""
    found = [_curves(figure_data, "Test accuracy", {"accuracy": "test accuracy (%)"}, measured)]
    if figure_data.perplexed:
        found.append(
            _curves(figure_data, "Test perplexity", {"perplexity": "test perplexity"}, measured, percent=False)
        )
    for name in dict.fromkeys(name for one in figure_data.curves for name in one.callbacks):
        found.append(_curves(figure_data, name, {name: name}, _of_callback, percent=False))
    if figure_data.scored:
        rates = {
            "received-start": "accepted of the pairs received, since the start (%)",
            "sent-start": "accepted of the pairs sent, since the start (%)",
            "received-evaluation": "accepted of the pairs received, since the previous evaluation (%)",
            "sent-evaluation": "accepted of the pairs sent, since the previous evaluation (%)",
        }
        found.append(_curves(figure_data, "Acceptance rate", rates, _accepted))
    if figure_data.classes:
        found.append(_by_class(figure_data))
    if figure_data.applied:
        found.append(_applied(figure_data, "Staleness of applied updates", "lines"))
        found.append(_applied(figure_data, "Applied updates by worker", "bars"))
    return found


def label_of(figure_data: FigureData, line: str) -> str:
    """Return the name of a line for people."""
    return Page(figure_data).name(line)


def title_of(figure_data: FigureData, panel: str) -> str:
    """Return the name of a panel for people, such as `attack: random, scale 1`."""
    return plain(of_panel(figure_data.panel_keys, panel))


def styles_of(figure_data: FigureData) -> dict[str, Style]:
    """Return the style of each line and reference."""
    found = line_looks(figure_data) if figure_data.palette else looks([""])
    return {line: _style(look) for line, look in found.items()}


def _style(look: Look) -> Style:
    dashes = () if isinstance(look.dashes, str) else look.dashes[1]
    dash = ",".join(f"{length * look.width:.3g}px" for length in dashes) or "solid"
    return Style(look.color, dash, _SYMBOLS.get(look.marker, ""), look.width)


def _curves(
    figure_data: FigureData,
    title: str,
    y: Mapping[str, str],
    of: Callable[[Curve, Any], Range | None],
    *,
    percent: bool = True,
) -> Section:
    """Return the chart of the curves for which `of` returns the values of names in `y`."""
    axes = {against: x_axis(figure_data, against) for against in AGAINST}
    panels = []
    for panel, curves in figure_data.panels.items():
        lines = []
        for curve in (*curves, *figure_data.references):
            values = {name: found for name in y if (found := of(curve, name)) is not None}
            if values:
                line = Line(
                    line=curve.line,
                    label=label_of(figure_data, curve.line),
                    seeds=curve.seeds,
                    # Who trains alone sends nothing.
                    x={name: _numbers(axis.of(curve)) for name, axis in axes.items() if axis.of(curve).any()},
                    y={name: _range(each) for name, each in values.items()},
                    diverged=curve.diverged,
                    diverged_seeds=curve.diverged_seeds,
                    stalled_seeds=curve.stalled_seeds,
                    remark="" if curve.finished else "not finished",
                )
                lines.append(line)
        if lines or of is measured:  # a panel without any results has a place among the others
            panels.append(Panel(plain(panel), title_of(figure_data, panel), tuple(lines)))
    x: dict[str, str] = {name: axis.label for name, axis in axes.items()}
    return Section(title, "lines", x, y, percent, tuple(panels), styles_of(figure_data))


def _accepted(curve: Curve, name: str) -> Range | None:
    among, _, since = name.partition("-")
    return curve.acceptance.get((among, since))  # type: ignore[arg-type]


def _of_callback(curve: Curve, name: str) -> Range | None:
    return curve.callbacks.get(name)


def _applied(figure_data: FigureData, title: str, kind: Literal["lines", "bars"]) -> Section:
    x, y = ("staleness (updates)", "applied updates (%)") if kind == "lines" else ("worker", "applied updates")

    def line(one: AppliedUpdates) -> Line:
        positions, values = (one.staleness, one.share) if kind == "lines" else (one.workers, one.updates)
        return Line(
            one.line,
            label_of(figure_data, one.line),
            one.seeds,
            {"x": _numbers(positions)},
            {"y": _range(values)},
            remark=f"mean staleness {one.mean:.1f}",
        )

    panels = [
        Panel(plain(panel), title_of(figure_data, panel), tuple(map(line, lines)))
        for panel, lines in figure_data.applied.items()
    ]
    return Section(title, kind, {"x": x}, {"y": y}, False, tuple(panels), styles_of(figure_data))


def _by_class(figure_data: FigureData) -> Section:
    panels = []
    for panel, lines in figure_data.classes.items():
        found = [
            Line(
                one.line,
                label_of(figure_data, one.line),
                one.seeds,
                {"x": _numbers(one.classes)},
                {"y": _range(one.accuracy)},
            )
            for one in lines
        ]
        panels.append(Panel(plain(panel), title_of(figure_data, panel), tuple(found)))
    x, y = {"x": "class"}, {"y": "test accuracy of the last model (%)"}
    return Section("Accuracy by class", "bars", x, y, True, tuple(panels), styles_of(figure_data))


def _range(values: Range) -> dict[str, list[float | None]]:
    found = {"mean": _numbers(values.mean)}
    if np.any(values.low != values.high):
        found |= {"low": _numbers(values.low), "high": _numbers(values.high)}
    return found


def _numbers(values: Values) -> list[float | None]:
    """Return five significant digits of each value, which is enough for a chart and keeps the file small."""
    return [float(f"{value:.5g}") if np.isfinite(value) else None for value in values]


_HERE = Path(__file__).parent


def write_report(content: ReportContent, file: Path) -> None:
    """Write the report.

    Raises:
        RunError: the packages of the extra `report` are not installed, or the file cannot be written.
    """
    text = render(content)
    with writing(file, "choose another file with -o"):
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, text)


def render(content: ReportContent) -> str:
    """Return the report as HTML; every text of the results is escaped.

    Raises:
        RunError: the packages of the extra `report` are not installed.
    """
    try:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined
        from markupsafe import Markup
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        package = str(error.name).partition(".")[0]
        raise RunError(
            f"a report needs the package {package}, which is not installed: install hpcps with its extra `report`: "
            "pip install 'hpcps[report]'"
        ) from error
    template = Environment(
        loader=FileSystemLoader(_HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    ).get_template("report.html")
    charts: list[Section] = []
    variants = [_variant(figure_data, charts) for figure_data in content.shown]
    lines: dict[str, tuple[str, Style]] = {}
    panels: dict[str, str] = {}
    for figure_data in content.shown:  # a line of several variants looks as in the first one
        for line, style in styles_of(figure_data).items():
            lines.setdefault(line, (label_of(figure_data, line), style))
        for panel in figure_data.panels:
            panels.setdefault(plain(panel), title_of(figure_data, panel))
    runs = content.status.runs
    return template.render(
        content=content,
        study_rows=study_rows,
        summary=summary(runs),
        meaning=f"{MEANING}; {STALLED}",
        states=Counter(run.state for run in runs).items(),
        failed=[run for run in runs if run.failures or run.earlier or run.state == "failed"],
        variants=variants,
        lines=lines if len(lines) > 1 else {},
        panels=panels if len(panels) > 1 else {},
        line_title=of_key(content.shown[0].line_key) if content.shown else "",
        data=[section.data() for section in charts],
        plotly=Markup(get_plotlyjs()),
        css=Markup((_HERE / "report.css").read_text(encoding="utf-8")),
        js=Markup((_HERE / "report.js").read_text(encoding="utf-8")),
        source="the published table" if content.published else "the run folders",
        version=hpcps.__version__,
        written=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _variant(figure_data: FigureData, charts: list[Section]) -> dict[str, Any]:
    """Return what the template shows of a variant; append its charts, whose positions are their keys."""
    first = len(charts)
    charts += sections(figure_data)
    rows = [
        (line, label_of(figure_data, line), [(plain(p), cells(figure_data, p, line)) for p in figure_data.panels])
        for line in lines_of(figure_data)
    ]
    panels = {plain(panel): title_of(figure_data, panel) for panel in figure_data.panels}
    shown = list(enumerate(charts[first:], first))
    return {"data": figure_data, "sections": shown, "panels": panels, "rows": rows, "notes": notes(figure_data)}
