"""Writes a report as one HTML file that needs nothing else."""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import hpcps
from hpcps.errors import RunError
from hpcps.figures.figure_data import FigureData
from hpcps.figures.final import cells, lines_of, notes, plain
from hpcps.figures.grid_study import study_rows
from hpcps.figures.labels import of_key
from hpcps.figures.report.charts import Section, Style, label_of, sections, styles_of, title_of
from hpcps.figures.report.content import ReportContent
from hpcps.records.acceptance import MEANING, STALLED
from hpcps.records.files import write_whole, writing
from hpcps.records.forecast import summary

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
