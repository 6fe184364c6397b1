"""Writes tables and figures to an experiment's results folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from hpcps.errors import RunError
from hpcps.figures import acceptance, accuracy, staleness
from hpcps.figures.figure_data import FigureData, figure_data_of
from hpcps.figures.final import comma_separated, markdown
from hpcps.figures.names import suffixes
from hpcps.figures.page import save
from hpcps.records.files import write_whole
from hpcps.records.table import read_table, write_table


def write_tables(frame: pd.DataFrame, results: Path) -> str:
    """Write `table.parquet`, `final_accuracy.md` and `.csv`; return the Markdown, empty before any evaluation."""
    write_table(frame, results / "table.parquet")
    if not (frame["event"] == "evaluation").any():
        return ""
    shown = figure_data_of(frame, baseline(frame, results))
    text = markdown(shown)
    try:
        write_whole(results / "final_accuracy.md", text)
        write_whole(results / "final_accuracy.csv", comma_separated(shown))
    except OSError as error:
        raise RunError(f"cannot write to {results}: {error.strerror}") from error
    return text


def write_figures(shown: list[FigureData], folder: Path) -> list[Path]:
    """Draw the figures of each variant as PNG and PDF; return the files.

    The figures are accuracy by epoch, wall time and bytes; the acceptance rate of rules with a reference; and for
    asynchronous training the staleness of applied updates and their number by worker. With several variants, the file
    names contain the differences from the experiment file.

    Raises:
        RunError: the folder cannot be written.
    """
    files = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for figure_data, suffix in zip(shown, suffixes([figure_data.variant for figure_data in shown]), strict=True):
            for name, figure in _figures(figure_data):
                files += save(figure, folder / f"{name}{suffix}")
    except OSError as error:
        raise RunError(f"cannot write figures to {folder}: {error.strerror}; choose another folder with -o") from error
    return files


def baseline(frame: pd.DataFrame, results: Path) -> pd.DataFrame | None:
    """Return the collected table of the experiment that `baseline` names, beside an experiment's results folder."""
    name = frame.attrs.get("baseline")
    table = results.parent / str(name) / "table.parquet"
    return read_table(table) if name and table.exists() else None


def _figures(figure_data: FigureData) -> Iterator[tuple[str, Figure]]:
    for against in accuracy.AGAINST:
        yield f"accuracy_by_{against}", accuracy.draw(figure_data, against)
    if figure_data.scored:
        yield "acceptance_by_epoch", acceptance.draw(figure_data)
    if figure_data.applied:
        yield "staleness", staleness.draw_staleness(figure_data)
        yield "updates_by_worker", staleness.draw_counts(figure_data)
