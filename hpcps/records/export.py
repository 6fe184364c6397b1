"""Writes the table of an experiment for other programs: CSV files, or event files of TensorBoard."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from hpcps.errors import InputError, RunError
from hpcps.inputs import MiB, read_json
from hpcps.records.files import writing
from hpcps.spec.tree import get

ROUND_FIELDS = (
    *("loss", "train_accuracy", "learning_rate", "compute", "combine", "exchange", "wait", "bytes_sent"),
    *("acceptance_rate", "blocks_attacked"),
)
"""The fields of `round` lines that TensorBoard shows, for each process."""

_NO_SCALARS = ("index", "round", "time", "rank", "pid", "attempt")


def write_csv(frame: pd.DataFrame, folder: Path) -> list[Path]:
    """Write `runs.csv`, a row per run with its settings, and `<event>.csv` for each event of record lines.

    A file of an event has the column `run_id` and the fields that its lines have; `hpcps.records.collect.collect`
    describes the additional fields of evaluations.

    Raises:
        RunError: the folder cannot be written.
    """
    settings = _settings(frame)
    tables = {"runs": frame[settings].drop_duplicates("run_id").reset_index(drop=True)}
    for event, rows in frame.groupby("event", sort=False, observed=True):
        fields = [name for name in frame if name not in settings and name != "event" and rows[name].notna().any()]
        tables[str(event)] = rows[["run_id", *fields]]
    files = []
    with writing(f"to {folder}", "choose another folder with -o"):
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            files.append(folder / f"{name}.csv")
            table.to_csv(files[-1], index=False)
    return files


def write_tensorboard(frame: pd.DataFrame, results: Path, folder: Path) -> list[Path]:
    """Write the event files of each run into a folder of its own; return these folders.

    `evaluation/<field>` are the numbers of evaluations, and `<role>-<index>/<field>` those of `round` lines in
    `ROUND_FIELDS`. The step is the round. The times are those of the run, if its provenance has its start.

    Args:
        frame: the table.
        results: the experiment's folder.
        folder: the folder to write.

    Raises:
        RunError: tensorboardX is not installed, or the folder cannot be written.
    """
    try:
        from tensorboardX import SummaryWriter
    except ImportError as error:
        raise RunError(
            "--to tensorboard needs the package tensorboardX, which is not installed: install hpcps with its extra "
            "`tensorboard`: pip install 'hpcps[tensorboard]'"
        ) from error
    settings = _settings(frame)
    starts = _starts(results)
    folders = []
    with writing(f"to {folder}", "choose another folder with -o"):
        for run_id, rows in frame.groupby("run_id", sort=False, observed=True):
            facts = rows[settings].iloc[0]
            path = folder / re.sub(r"[^\w.+-]+", "-", f"{facts['label']}-{run_id}")
            for old in path.glob("events.out.tfevents.*"):
                old.unlink()
            with SummaryWriter(str(path)) as writer:
                lines = [f"| {name} | {value} |" for name, value in facts.items() if pd.notna(value)]
                start = starts.get(str(run_id), 0.0)
                writer.add_text("settings", "\n".join(["| key | value |", "|---|---|", *lines]), 0, start)
                for tag, step, time, value in _scalars(rows.drop(columns=settings)):
                    writer.add_scalar(tag, value, step, start + time)
            folders.append(path)
    return folders


def _settings(frame: pd.DataFrame) -> list[str]:
    """Return the columns that have the same value in all rows of a run; `collect` puts them before `event`."""
    names = list(frame.columns)
    return names[: names.index("event")]


def _scalars(rows: pd.DataFrame) -> Iterator[tuple[str, int, float, float]]:
    """Yield tag, round, seconds since the start, and value."""
    evaluations = rows[rows["event"] == "evaluation"]
    known = evaluations.dropna(axis="columns", how="all").select_dtypes("number")
    fields = [name for name in known if name not in _NO_SCALARS]
    yield from _of_rows(evaluations, {name: f"evaluation/{name}" for name in fields})
    rounds = rows[rows["event"] == "round"]
    for (role, index), own in rounds.groupby(["role", "index"], sort=False, observed=True):
        yield from _of_rows(own, {name: f"{role}-{index}/{name}" for name in ROUND_FIELDS if name in own})


def _of_rows(rows: pd.DataFrame, tags: Mapping[Any, str]) -> Iterator[tuple[str, int, float, float]]:
    for name, tag in tags.items():
        known = rows[["round", "time", name]].dropna()
        for step, time, value in known.itertuples(index=False):
            yield tag, int(step), float(time), float(value)


def _starts(results: Path) -> dict[str, float]:
    """Return the start of each run, in seconds since 1970, by run id."""
    found: dict[str, Any] = {}
    with suppress(InputError):
        published = read_json(results / "provenance.json", 64 * MiB)
        found |= published if isinstance(published, dict) else {}
    for path in results.glob("runs/*/provenance.json"):
        with suppress(InputError):
            found[path.parent.name] = read_json(path, 64 * MiB)
    starts = {}
    for run_id, facts in found.items():
        with suppress(ValueError):
            starts[run_id] = datetime.fromisoformat(str(get(facts, ("started",)))).timestamp()
    return starts
