"""Finds out who failed first, from what guards said, what processes reported and where records end."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcps.launch.plan import PlannedRun
from hpcps.records.lines import read_lines
from hpcps.records.run_directory import Failure, RunDirectory

_DEATH = re.compile(r"hpcps: (\w+)-(\d+) \(pid (\d+)\) on (\S+) (was killed by signal .+|exited with status \d+)")
_LAST_LINES = 5
# Seconds between the end of one process and the first report of another that misses it, for the order of the reports.
_EARLIER = 1e-3


@dataclass(frozen=True)
class Death:
    """A process that cannot report itself: who it is, and what became of it."""

    role: str
    index: int
    pid: int | None
    host: str
    end: str


def read_death(line: str) -> Death | None:
    """Read what a guard prints when its process has died; None for any other line."""
    found = _DEATH.search(line)
    return Death(found[1], int(found[2]), int(found[3]), found[4], f"the process {found[5]}") if found else None


def find_cause(run: PlannedRun, deaths: Sequence[Death], known: Collection[Failure]) -> Failure | None:
    """Find out who failed first, and note it in the run's folder if nobody has; None if nobody knows.

    Args:
        run: the run during which something failed.
        deaths: those that guards told of, in order.
        known: reports of earlier attempts.
    """
    directory = RunDirectory(Path(run.directory))
    failures = [failure for failure in directory.failures if failure not in known]
    reported = {(failure.role, failure.index) for failure in failures}
    # A process that could not even report was killed, and comes first: others fail because it is gone.
    mute = [death for death in deaths if (death.role, death.index) not in reported]
    if not mute and failures:
        mute = _silent(run, directory, failures[0])
    began = min([time.time(), *(failure.time for failure in failures)]) - _EARLIER * len(mute)
    found = []
    for number, death in enumerate(mute):
        line = _last_line(directory, f"{death.role}-{death.index}")
        round = line.get("round")
        found.append(
            Failure(
                time=began + _EARLIER * number,
                role=death.role,
                index=death.index,
                host=death.host,
                round=round if isinstance(round, int) else None,
                phase=f"after {line['event']}" if line else "start",
                error=death.end,
            )
        )
        _note(directory, found[-1], death.pid)
    return next(iter([*found, *failures]), None)


def last_lines(run: PlannedRun, failure: Failure) -> tuple[str, ...]:
    """Return the end of the record of the process that failed."""
    with suppress(OSError):
        path = Path(run.directory, "records", f"{failure.role}-{failure.index}.jsonl")
        return tuple(path.read_text(errors="replace").splitlines()[-_LAST_LINES:])
    return ()


def _silent(run: PlannedRun, directory: RunDirectory, first: Failure) -> list[Death]:
    """Return whom the others waited for in vain, if the first failure was such a wait.

    Everybody who waits says so in his record halfway through his patience. Who is waited for and does not wait himself
    is where it hangs; the first whose patience ends is often far from there.
    """
    lines = {file.stem: _last_line(directory, file.stem) for file in directory.records}
    stuck = {name: line["waiting_for"] for name, line in lines.items() if "waiting_for" in line}
    if f"{first.role}-{first.index}" not in stuck:
        return []
    waiting: dict[str, list[str]] = {}
    for name, others in stuck.items():
        for other in others:
            if other not in stuck:
                waiting.setdefault(other, []).append(name)
    patience = run.spec["run"]["transport"]["timeout"]
    found = []
    for name, by in waiting.items():
        role, _, index = name.rpartition("-")
        line = lines.get(name, {})
        end = f"it sent nothing for {patience:g} s, and {', '.join(by)} waited"
        found.append(Death(role, int(index), None, str(line.get("host", "")), end))
    return found


def _note(directory: RunDirectory, failure: Failure, pid: int | None) -> None:
    who = failure.role, failure.index, failure.host
    # A full disk may be the very reason: then what is printed has to do.
    with suppress(OSError):
        directory.fail(*who, failure.round, failure.phase, failure.error, at=failure.time, pid=pid)


def _last_line(directory: RunDirectory, process: str) -> dict[str, Any]:
    """Return the last whole line of a process's record; empty without one."""
    with suppress(OSError):
        lines = read_lines(directory.path / "records" / f"{process}.jsonl").lines
        return lines[-1] if lines else {}
    return {}
