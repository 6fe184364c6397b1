"""Puts what was collected into an experiment's results folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from hpcps.errors import RunError
from hpcps.figures import acceptance, accuracy, staleness
from hpcps.figures.final import comma_separated, markdown
from hpcps.figures.names import marks
from hpcps.figures.page import save
from hpcps.figures.sheet import Sheet, sheets
from hpcps.records.files import write_whole
from hpcps.records.table import read_table, write_table

BASELINE = "sgd_baseline"
"""The experiment whose line the figures that begin with one of these names show for reference, as ZenoPS's do."""

_WITH_BASELINE = ("fig3_", "fig4_")


def write_tables(frame: pd.DataFrame, results: Path) -> str:
    """Write `table.parquet`, `final_accuracy.md` and `.csv`; return the Markdown, empty before any evaluation."""
    write_table(frame, results / "table.parquet")
    if not (frame["event"] == "evaluation").any():
        return ""
    shown = sheets(frame, baseline(frame, results))
    text = markdown(shown)
    try:
        write_whole(results / "final_accuracy.md", text)
        write_whole(results / "final_accuracy.csv", comma_separated(shown))
    except OSError as error:
        raise RunError(f"cannot write to {results}: {error.strerror}") from error
    return text


def write_figures(shown: list[Sheet], folder: Path) -> list[Path]:
    """Draw each sheet's figures as PNG and PDF; return the files.

    Accuracy by epoch, wall time and bytes; the acceptance rate where a rule scores; the staleness of applied updates,
    and their number by worker, where training was asynchronous. With several variants, the file names of those that
    differ from the experiment file say how.

    Raises:
        RunError: the folder cannot be written.
    """
    files = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for sheet, mark in zip(shown, marks([sheet.variant for sheet in shown]), strict=True):
            for name, figure in _figures(sheet):
                files += save(figure, folder / f"{name}{mark}")
    except OSError as error:
        raise RunError(f"cannot write figures to {folder}: {error.strerror}; choose another folder with -o") from error
    return files


def baseline(frame: pd.DataFrame, results: Path) -> pd.DataFrame | None:
    """Return the collected table of the baseline beside an experiment's results folder, if its figures show it."""
    table = results.parent / BASELINE / "table.parquet"
    named = str(frame.attrs.get("experiment", "")).startswith(_WITH_BASELINE)
    return read_table(table) if named and table.exists() else None


def _figures(sheet: Sheet) -> Iterator[tuple[str, Figure]]:
    for against in accuracy.AGAINST:
        yield f"accuracy_by_{against}", accuracy.draw(sheet, against)
    if sheet.scored:
        yield "acceptance_by_epoch", acceptance.draw(sheet)
    if sheet.applied:
        yield "staleness", staleness.draw_staleness(sheet)
        yield "updates_by_worker", staleness.draw_counts(sheet)
