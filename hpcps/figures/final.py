"""The table of final accuracies, with the final acceptance rates: a row per rule, a column per attack."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence

from hpcps.figures.curve import Curve
from hpcps.figures.figure_data import TIED, FigureData
from hpcps.records.acceptance import MEANING, STALLED
from hpcps.records.inventory import enumerated

_WIDEST = 6
"""With more panels than this, they are the rows."""


def markdown(shown: Sequence[FigureData]) -> str:
    """Return the final test accuracies in percent: a Markdown table for each variant, below a description of it."""
    parts = []
    for figure_data in shown:
        panels = [plain(panel) for panel in figure_data.panels]
        head = [figure_data.line_key, *(panel or "final accuracy" for panel in panels)]
        head += [f"{panel}: accepted" if panel else "accepted" for panel in panels] if figure_data.scored else []
        rows = [head]
        for line in lines_of(figure_data):
            found = [cells(figure_data, panel, line) for panel in figure_data.panels]
            accepted = [rates for _, rates in found] if figure_data.scored else []
            rows.append([_named(figure_data, line), *(accuracy for accuracy, _ in found), *accepted])
        if len(figure_data.panels) > _WIDEST:
            rows = [list(column) for column in zip(*rows, strict=True)]
        columns = f"columns: {' · '.join(figure_data.panel_keys)}" if len(figure_data.panel_keys) > 1 else ""
        more = figure_data.not_reduced, columns
        parts.append(described_table(figure_data, "final test accuracy (%)", rows, notes(figure_data), *more))
        if figure_data.perplexed:
            rows = [[figure_data.line_key, *(panel or "final perplexity" for panel in panels)]]
            for line in lines_of(figure_data):
                values = [_perplexity(_find(figure_data, panel, line)) for panel in figure_data.panels]
                rows.append([_named(figure_data, line), *values])
            parts.append(described_table(figure_data, "final test perplexity", rows, ""))
    return "\n".join(parts)


def heading(figure_data: FigureData, what: str, *facts: str) -> str:
    """Return the lines above a table: the experiment and what the table shows, and facts about the runs."""
    return "  \n".join(filter(None, [f"**{figure_data.experiment}**: {what}", *facts]))


def described_table(figure_data: FigureData, what: str, rows: Sequence[Sequence[str]], notes: str, *facts: str) -> str:
    """Return a Markdown table between a description of its runs and its notes, which may be empty."""
    title = heading(figure_data, what, figure_data.facts, figure_data.remark, *facts)
    return f"{title}\n\n{aligned_table(rows)}\n" + (f"\n{notes}\n" if notes else "")


def aligned_table(rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns; the first row is its head."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [_aligned(row, widths) for row in rows]
    lines.insert(1, "|" + "|".join("-" * (width + 1) + "-:"[column > 0] for column, width in enumerate(widths)) + "|")
    return "\n".join(lines)


def cells(figure_data: FigureData, panel: str, line: str) -> tuple[str, str]:
    """Return the texts of a line in a panel: its final accuracy with range and numbers of diverged and stalled seeds,
    and its acceptance rate; `–` means that there is no result. `notes` explains the signs.
    """
    found = _find(figure_data, panel, line)
    return _cell(found, figure_data.seeds_lost(panel, line)), _accepted(found) if figure_data.scored else "–"


def comma_separated(shown: Sequence[FigureData]) -> str:
    """Return the same numbers as CSV, a row per line and panel; an empty cell means that there is no result.

    `accepted` is the percentage of the (update, block) pairs sent since the start; `diverged`, `stalled` and
    `unfinished` count seeds, the last one also those that have not started.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = ("accuracy", "accuracy_low", "accuracy_high", "seeds", "epoch", "accepted", "diverged", "stalled")
    writer.writerow(["line", "panel", *names, "variant", "unfinished"])
    for figure_data in shown:
        for panel in figure_data.panels:
            for line in lines_of(figure_data):
                found = _find(figure_data, panel, line)
                unfinished = figure_data.seeds_lost(panel, line) + (found.unfinished_seeds if found else 0)
                writer.writerow([line, plain(panel), *_numbers(found), figure_data.variant, unfinished])
    return text.getvalue()


def plain(panel: str) -> str:
    """Return a panel's name on one line."""
    return panel.replace("\n", ", ").replace(TIED, " ")


def lines_of(figure_data: FigureData) -> list[str]:
    """Return the lines of a table in order, the references last."""
    return [*figure_data.lines, *(curve.line for curve in figure_data.references)]


def _named(figure_data: FigureData, line: str) -> str:
    """Return the name of a line; that of a reference has its number of epochs, if the other lines have another one."""
    reference = next((curve for curve in figure_data.references if curve.line == line and curve.epoch.size), None)
    beside = {curve.epoch[-1] for panel in figure_data.panels.values() for curve in panel if curve.epoch.size}
    if reference is None or beside == {reference.epoch[-1]}:
        return line
    return f"{line}, {reference.epoch[-1]:g} epochs"


def _find(figure_data: FigureData, panel: str, line: str) -> Curve | None:
    return next((curve for curve in (*figure_data.panels[panel], *figure_data.references) if curve.line == line), None)


def _cell(curve: Curve | None, lost: int) -> str:
    if curve is None or not curve.epoch.size:
        return "–"
    value = f"{curve.accuracy.mean[-1]:.1f}"
    if curve.seeds > 1:
        value += f" [{curve.accuracy.low[-1]:.1f}–{curve.accuracy.high[-1]:.1f}]"
    value += "" if curve.diverged is None else f" † {curve.share_diverged}".rstrip()
    value += f" ‡ {curve.share_stalled}".rstrip() if curve.stalled_seeds else ""
    lost += curve.left_out
    value += f" ({curve.seeds} of {curve.seeds + lost} seeds)" if lost else ""
    return value if curve.finished else f"{value} (epoch {curve.epoch[-1]:g})"


def _perplexity(curve: Curve | None) -> str:
    if curve is None or curve.perplexity is None or not curve.epoch.size:
        return "–"
    mean, low, high = (
        f"{part[-1]:.4g}" for part in (curve.perplexity.mean, curve.perplexity.low, curve.perplexity.high)
    )
    return f"{mean} [{low}–{high}]" if curve.seeds > 1 else mean


def _accepted(curve: Curve | None) -> str:
    return "–" if curve is None or curve.accepted is None else f"{curve.accepted:.1f}"


def _numbers(curve: Curve | None) -> list[str]:
    if curve is None or not curve.epoch.size:
        return [""] * 8
    accuracy = [curve.accuracy.mean[-1], curve.accuracy.low[-1], curve.accuracy.high[-1]]
    return [
        *(f"{value:.6g}" for value in accuracy),
        str(curve.seeds),
        f"{curve.epoch[-1]:g}",
        "" if curve.accepted is None else f"{curve.accepted:.6g}",
        str(curve.diverged_seeds),
        str(curve.stalled_seeds),
    ]


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = zip(cells, widths, strict=True)
    return "| " + " | ".join([first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in rest)]) + " |"


def notes(figure_data: FigureData) -> str:
    """Explain the signs in the cells of a table, and list the points without a result; empty if there is none."""
    found = []
    if figure_data.scored:
        found.append(f"{MEANING} (%)")
    if any(curve.diverged is not None for curve in figure_data.curves):
        several = any(curve.share_diverged for curve in figure_data.curves)
        found.append("† diverged" + (" (k of n seeds, which the mean includes)" if several else ""))
    if any(curve.stalled_seeds for curve in figure_data.curves):
        several = any(curve.share_stalled for curve in figure_data.curves)
        found.append(f"‡ {STALLED}" + (" (k of n seeds, which the mean includes)" if several else ""))
    if any(curve.seeds > 1 for curve in figure_data.curves):
        found.append("[lowest–highest of the seeds]")
    if not all(curve.finished for curve in figure_data.curves):
        found.append("(epoch n): not finished")
    if figure_data.lost:
        found.append(f"no result yet: {enumerated([label for label, *_ in figure_data.lost], 12)}")
    return "; ".join(found)
