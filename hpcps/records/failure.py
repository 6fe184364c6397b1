"""The reports of the processes of a run that failed."""

from __future__ import annotations

import json
import os
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcps.errors import InputError
from hpcps.inputs import finite, read_json
from hpcps.records.files import write_whole


@dataclass(frozen=True)
class Failure:
    """The failure of one process of a run.

    Attributes:
        time: its time, in seconds since 1970.
        phase: the activity of the process; of a process that was killed, `after its record` and the last event in it.
        error: the message.
    """

    time: float
    role: str
    index: int
    host: str
    round: int | None
    phase: str
    error: str

    def __str__(self) -> str:
        where = f"{self.role}-{self.index} on {self.host or 'an unknown host'}"
        killed = self.phase.startswith("after ")
        doing = self.phase if killed else f"phase {self.phase or 'unknown'}"
        when = f"in round {self.round}, " if self.round is not None else "" if killed else "in "
        return f"{where} failed {when}{doing}: {self.error}"


def failure_reports(folder: Path) -> list[tuple[Path, Failure]]:
    """Return the readable reports of a folder, and the failures that they describe."""
    reports = {file: read_object(file) for file in sorted(folder.glob("*.json"))}
    return [(file, _failure(report)) for file, report in reports.items() if report]


def failures_of(folder: Path) -> tuple[Failure, ...]:
    """Return the failures that the reports of a folder describe, in order of time."""
    return tuple(sorted((failure for _, failure in failure_reports(folder)), key=lambda failure: failure.time))


def _failure(report: Mapping[str, Any]) -> Failure:
    text = {key: str(report.get(key) or "") for key in ("role", "host", "phase", "error")}
    round = report.get("round")
    return Failure(
        time=finite(report.get("time")),
        index=int(finite(report.get("index"))),
        round=None if round is None else int(finite(round)),
        **text,
    )


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file; empty if the file is missing or damaged."""
    try:
        value = read_json(path)
    except InputError:
        return {}
    return value if isinstance(value, dict) else {}


def write_failure(
    folder: Path,
    role: str,
    index: int,
    host: str,
    round: int | None,
    phase: str,
    error: BaseException | str,
    at: float | None,
    pid: int | None,
) -> None:
    """Write the report of a process; for the arguments see `RunDirectory.fail`."""
    if isinstance(error, BaseException):
        pid = os.getpid()
    at = time.time() if at is None else at
    report = {"time": at, "role": role, "index": index, "host": host, "pid": pid, "round": round}
    report |= {"phase": phase, "error": str(error), "traceback": ""}
    if isinstance(error, BaseException):
        report["error"] = f"{type(error).__name__}: {error}"
        report["traceback"] = "".join(traceback.format_exception(error))
    folder.mkdir(exist_ok=True)
    write_whole(folder / f"{role}-{index}.json", json.dumps(report, indent=1))
