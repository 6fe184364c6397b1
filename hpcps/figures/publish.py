"""Puts what was collected into an experiment's results folder."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from hpcps.errors import RunError
from hpcps.figures.accuracy import save_all
from hpcps.figures.final import comma_separated, markdown
from hpcps.figures.sheet import sheets
from hpcps.records.files import write_whole
from hpcps.records.table import write_table


def write_tables(frame: pd.DataFrame, results: Path) -> str:
    """Write `table.parquet`, `final_accuracy.md` and `.csv`; return the Markdown, empty before any evaluation."""
    write_table(frame, results / "table.parquet")
    if not (frame["event"] == "evaluation").any():
        return ""
    shown = sheets(frame)
    text = markdown(shown)
    try:
        write_whole(results / "final_accuracy.md", text)
        write_whole(results / "final_accuracy.csv", comma_separated(shown))
    except OSError as error:
        raise RunError(f"cannot write to {results}: {error.strerror}") from error
    return text


def write_figures(frame: pd.DataFrame, folder: Path) -> list[Path]:
    """Draw accuracy by epoch, wall time and bytes; return the files.

    Raises:
        RunError: there is no evaluation yet, or the folder cannot be written.
    """
    return save_all(sheets(frame), folder)
