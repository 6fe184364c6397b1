"""Tables of the logs of other systems, in the form of `hpcps collect`: their settings, and what draws them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from hpcps.errors import RunError
from hpcps.inputs import MiB
from hpcps.records.table import stack, tabulate, with_settings
from hpcps.records.totals import sum_processes

IMPORTED = "imported"
"""The attribute of the table that names the system whose logs it has: a key of `SYSTEMS`."""

LARGEST = 256 * MiB
"""The largest file of logs."""

MOST = 1e15
"""The largest number in a log."""


def files_in(top: Path) -> Iterator[Path]:
    """Yield the files in a folder and in its folders.

    Raises:
        RunError: one of them cannot be read.
    """

    def refuse(error: OSError) -> None:
        raise RunError(f"{error.filename} cannot be read: {error.strerror}") from error

    for folder, _, names in os.walk(top, onerror=refuse):
        yield from (path for path in (Path(folder) / name for name in names) if path.is_file())


@dataclass(frozen=True)
class LoggedSystem:
    """A system whose logs can be imported.

    Attributes:
        title: its name in a sentence.
        kinds: the figures of its logs: the words between `hpcps plot` and the name.
    """

    title: str
    kinds: tuple[str, ...]

    @staticmethod
    def draw(name: str, kinds: Sequence[str]) -> str:
        """Return the commands for figures of some kinds, with their verb: "`hpcps plot NAME` draws"; empty if none."""
        commands = [f"`{' '.join(filter(None, ('hpcps plot', kind, name)))}`" for kind in kinds]
        return f"{' and '.join(commands)} {'draws' if len(commands) == 1 else 'draw'}" if commands else ""


SYSTEMS = {
    "esync": LoggedSystem("the ESync code", ("esync",)),
    "ps_pytorch": LoggedSystem("ps_pytorch", ("", "speedup")),
}


@dataclass(frozen=True)
class ImportedRun:
    """A run of another system.

    Attributes:
        label: its name in tables.
        settings: the settings of hpcps that mean the same, those that the log states or implies.
        rows: its lines `round` and `evaluation`, with the fields of records.
        sources: the name in the logs of each process with rounds, by index.
    """

    label: str
    settings: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    sources: Mapping[int, str]


def table_of_runs(name: str, system: str, runs: Sequence[ImportedRun], swept: Sequence[str]) -> pd.DataFrame:
    """Return the rows of some runs: `round`, `evaluation` and `totals` as in `hpcps collect`.

    Args:
        name: the name of the experiment in the table.
        system: the key of `SYSTEMS`.
        runs: the runs.
        swept: the columns in which they differ.
    """
    tables = []
    for run in runs:
        table = tabulate(run.rows)
        totals = sum_processes(table)
        tables.append(stack([table, totals.assign(source=totals["index"].map(dict(run.sources)))]))
    frame = with_settings(tables, [_settings(name, point, run) for point, run in enumerate(runs)])
    frame.attrs.update({"experiment": name, "swept": list(swept), "outside": {}, IMPORTED: system})
    return frame


def imported_system(frame: pd.DataFrame) -> LoggedSystem | None:
    """Return the system whose logs a table has; None if it has those of hpcps."""
    return SYSTEMS.get(str(frame.attrs.get(IMPORTED)))


def _settings(name: str, point: int, run: ImportedRun) -> dict[str, Any]:
    key = f"{name}/{run.label}"
    return {
        "run_id": hashlib.sha256(key.encode(errors="replace")).hexdigest()[:10],
        "label": run.label,
        "point": point,
        "status": "done",
        "experiment": name,
        "seed": 0,
        "fidelity": "original",
        "validators": 0,
        **run.settings,
        "scores": False,
        "outside": "",
        "variant": "",
    }
