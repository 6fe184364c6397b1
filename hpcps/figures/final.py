"""The table of final accuracies, with the final acceptance rates: a row per rule, a column per attack."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from hpcps.figures.curve import AMONG, Curve
from hpcps.figures.sheet import TIED, Sheet

_WIDEST = 6
"""With more panels than this, they are the rows."""


def markdown(sheets: Sequence[Sheet]) -> str:
    """Write the final test accuracies, in percent, as a Markdown table for each variant, with what ran above it."""
    parts = []
    for sheet in sheets:
        panels = [_plain(panel) for panel in sheet.panels]
        head = [sheet.line_key, *(panel or "final accuracy" for panel in panels)]
        head += [f"{panel}: accepted" if panel else "accepted" for panel in panels] if sheet.scored else []
        rows = [head]
        for line in _lines(sheet):
            found = [_find(sheet, panel, line) for panel in sheet.panels]
            cells = [_cell(curve) for curve in found]
            cells += [_accepted(curve) for curve in found] if sheet.scored else []
            rows.append([line, *cells])
        if len(sheet.panels) > _WIDEST:
            rows = [list(column) for column in zip(*rows, strict=True)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
        lines = [_aligned(row, widths) for row in rows]
        lines.insert(
            1, "|" + "|".join("-" * (width + 1) + "-:"[column > 0] for column, width in enumerate(widths)) + "|"
        )
        heading = [f"**{sheet.experiment}**: final test accuracy (%)", sheet.facts, sheet.remark]
        parts.append("  \n".join(filter(None, heading)) + "\n\n" + "\n".join(lines) + "\n" + _legend(sheet))
    return "\n".join(parts)


def comma_separated(sheets: Sequence[Sheet]) -> str:
    """Write the same numbers as CSV, a row per line and panel; `variant` tells reduced runs apart, empty is no result.

    `accepted_of_received` and `accepted_of_sent` are percentages of (update, block) pairs since the start.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ("accuracy", "accuracy_low", "accuracy_high", "seeds", "epoch", "accepted_of_received", "accepted_of_sent")
    writer.writerow(["line", "panel", *names, "variant"])
    for sheet in sheets:
        for panel in sheet.panels:
            for line in _lines(sheet):
                cells = _numbers(_find(sheet, panel, line))
                writer.writerow([line, _plain(panel), *cells, sheet.variant])
    return text.getvalue()


def _plain(panel: str) -> str:
    """Return a panel's name on one line."""
    return panel.replace("\n", ", ").replace(TIED, " ")


def _lines(sheet: Sheet) -> list[str]:
    return [*sheet.lines, *(curve.line for curve in sheet.references)]


def _find(sheet: Sheet, panel: str, line: str) -> Curve | None:
    return next((curve for curve in (*sheet.panels[panel], *sheet.references) if curve.line == line), None)


def _cell(curve: Curve | None) -> str:
    if curve is None or not curve.epoch.size:
        return "–"
    value = f"{curve.accuracy.mean[-1]:.1f}"
    if curve.seeds > 1:
        value += f" [{curve.accuracy.low[-1]:.1f}–{curve.accuracy.high[-1]:.1f}]"
    value += "" if curve.diverged is None else " †"
    return value if curve.finished else f"{value} (epoch {curve.epoch[-1]:g})"


def _accepted(curve: Curve | None) -> str:
    if curve is None or not curve.epoch.size or not curve.acceptance:
        return "–"
    return " / ".join(f"{curve.acceptance[among, 'start'].mean[-1]:.1f}" for among in AMONG)


def _numbers(curve: Curve | None) -> list[str]:
    if curve is None or not curve.epoch.size:
        return [""] * 7
    accuracy = [curve.accuracy.mean[-1], curve.accuracy.low[-1], curve.accuracy.high[-1]]
    rates = [curve.acceptance[among, "start"].mean[-1] if curve.acceptance else None for among in AMONG]
    return [
        *(f"{value:.6g}" for value in accuracy),
        str(curve.seeds),
        f"{curve.epoch[-1]:g}",
        *("" if rate is None else f"{rate:.6g}" for rate in rates),
    ]


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    return "| " + " | ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]) + " |"


def _legend(sheet: Sheet) -> str:
    notes = []
    if sheet.scored:
        notes.append("accepted: of the (update, block) pairs received / of those sent, since the start (%)")
    if any(curve.diverged is not None for curve in sheet.curves):
        notes.append("† diverged")
    if any(curve.seeds > 1 for curve in sheet.curves):
        notes.append("[lowest–highest of the seeds]")
    if not all(curve.finished for curve in sheet.curves):
        notes.append("(epoch n): not finished")
    return f"\n{'; '.join(notes)}\n" if notes else ""
