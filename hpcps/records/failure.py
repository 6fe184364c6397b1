"""The reports of the processes of a run that failed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcps.errors import InputError, text_of
from hpcps.inputs import finite, printable, read_json


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


def failure_text(process: object, host: str, round: int | None, phase: str, error: BaseException, run: str = "") -> str:
    """Return the message of a failure: the process, its host, the round, the phase, the run, and the error."""
    when = f" in round {round}" if round is not None else ""
    of = f" of run {run}" if run else ""
    return f"{process} on {host} failed{when} ({phase}){of}: {text_of(error)}"


def failure_reports(folder: Path) -> list[tuple[Path, Failure]]:
    """Return the readable reports of a folder, and the failures that they describe."""
    reports = {file: read_object(file) for file in sorted(folder.glob("*.json"))}
    return [(file, _failure(report)) for file, report in reports.items() if report]


def failures_of(folder: Path) -> tuple[Failure, ...]:
    """Return the failures that the reports of a folder describe, in order of time."""
    return tuple(sorted((failure for _, failure in failure_reports(folder)), key=lambda failure: failure.time))


def _failure(report: Mapping[str, Any]) -> Failure:
    text = {key: printable(str(report.get(key) or "")) for key in ("role", "host", "phase")}
    # Its lines are kept.
    text["error"] = "\n".join(map(printable, str(report.get("error") or "").splitlines()))
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
