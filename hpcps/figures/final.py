"""The table of final accuracies: a row per rule, a column per attack."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from hpcps.figures.sheet import Curve, Sheet


def markdown(sheets: Sequence[Sheet]) -> str:
    """Write the final test accuracies, in percent, as a Markdown table for each variant, with what ran above it."""
    parts = []
    for sheet in sheets:
        rows = [[sheet.line_key or "", *(panel or "final accuracy" for panel in sheet.panels)]]
        for line in sheet.lines:
            rows.append([line, *(_cell(_find(curves, line)) for curves in sheet.panels.values())])
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [_aligned(row, widths) for row in rows]
        lines.insert(
            1, "|" + "|".join("-" * (width + 1) + "-:"[column > 0] for column, width in enumerate(widths)) + "|"
        )
        heading = [f"**{sheet.experiment}**: final test accuracy (%)", sheet.facts, sheet.remark]
        parts.append("  \n".join(filter(None, heading)) + "\n\n" + "\n".join(lines) + "\n" + _legend(sheet))
    return "\n".join(parts)


def comma_separated(sheets: Sequence[Sheet]) -> str:
    """Write the same numbers as CSV; a `variant` column tells reduced runs apart, an empty cell is no result."""
    panels = list(dict.fromkeys(panel for sheet in sheets for panel in sheet.panels))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([sheets[0].line_key or "line", *(panel or "accuracy" for panel in panels), "variant"])
    for sheet in sheets:
        for line in sheet.lines:
            found = [_find(sheet.panels.get(panel, ()), line) for panel in panels]
            cells = [f"{curve.accuracy[-1]:.6g}" if curve and curve.epoch.size else "" for curve in found]
            writer.writerow([line, *cells, sheet.variant])
    return text.getvalue()


def _find(curves: Sequence[Curve], line: str) -> Curve | None:
    return next((curve for curve in curves if curve.line == line), None)


def _cell(curve: Curve | None) -> str:
    if curve is None or not curve.epoch.size:
        return "–"
    value = f"{curve.accuracy[-1]:.1f}"
    if curve.seeds > 1:
        value += f" [{curve.low[-1]:.1f}–{curve.high[-1]:.1f}]"
    value += "" if curve.diverged is None else " †"
    return value if curve.finished else f"{value} (epoch {curve.epoch[-1]:g})"


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    return "| " + " | ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]) + " |"


def _legend(sheet: Sheet) -> str:
    curves = [curve for panel in sheet.panels.values() for curve in panel]
    notes = []
    if any(curve.diverged is not None for curve in curves):
        notes.append("† diverged")
    if any(curve.seeds > 1 for curve in curves):
        notes.append("[lowest–highest of the seeds]")
    if not all(curve.finished for curve in curves):
        notes.append("(epoch n): not finished")
    return f"\n{'; '.join(notes)}\n" if notes else ""
