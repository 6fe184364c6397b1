"""Find the process that failed first, from the messages of guards, the reports of processes and the ends of records."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcps.inputs import regular
from hpcps.launch.dev_shm import Space, explanation
from hpcps.launch.guard import MARK, LostGuards
from hpcps.launch.plan import Plan, PlannedRun
from hpcps.records.failure import Failure
from hpcps.records.files import read_lines
from hpcps.records.inventory import enumerated
from hpcps.records.run_directory import RunDirectory

_LAST_LINES = 5
_EXITED = "the process exited"
# Assumed seconds between the end of one process and the first report of another that needs it; orders the reports.
_EARLIER = 1e-3


@dataclass(frozen=True)
class ProcessDeath:
    """A process that ended without its own report, and how it ended.

    Attributes:
        shm: the space of `/dev/shm` at its end, if a signal ended it that means a fault of memory.
    """

    role: str
    index: int
    pid: int | None
    host: str
    end: str
    shm: Space | None = None

    @property
    def exited(self) -> bool:
        """Whether no signal has ended it."""
        return self.end.startswith(_EXITED)


def read_death(line: str) -> ProcessDeath | None:
    """Read the JSON that a guard prints when its process has ended; None for any other line."""
    # Some launchers prefix each line with the rank; a launcher that is killed may leave an incomplete line.
    _, mark, text = line.partition(MARK)
    with suppress(ValueError, KeyError, TypeError):
        report = json.loads(text) if mark else {}
        role, _, index = report["name"].rpartition("-")
        shm = report.get("shm")
        end = f"the process {report['end']}"
        return ProcessDeath(role, int(index), report["pid"], report["host"], end, shm and Space(*shm))
    return None


def lost_guards(plan: Plan, lost: LostGuards) -> list[ProcessDeath]:
    """Return the process whose guard was killed first, alone or with the launcher's process on its host; or nothing."""
    members = {str(member): member for member in plan.world}
    gone = [members[name] for name in lost.processes() if name in members]
    gone = [member for member in gone if member.rank not in plan.replaceable]
    if not gone:
        return []
    first = gone[0]
    host = socket.gethostname() if first.host == "localhost" else first.host
    there = [member for member in plan.world if member.host == first.host]
    if not all(member in gone for member in there):
        end = "its guard was killed"
    elif len(there) == 1:
        end = f"its guard, or the launcher's process on {host}, died"
    else:
        end = f"the launcher's process on {host} died, and with it all {len(there)} processes there"
    return [ProcessDeath(first.role, first.index, None, host, end)]


def unguarded(plan: Plan, lost: LostGuards, status: int) -> list[ProcessDeath]:
    """Return the process that ended before it had a guard; or nothing, also if no process had one.

    Args:
        plan: the plan.
        lost: the files of the guards.
        status: the status of the launcher.
    """
    guarded = lost.guarded()
    gone = [member for member in plan.world if str(member) not in guarded]
    if not gone or len(gone) == len(plan.world):
        return []
    first = gone[0]
    hosts = {member.host: socket.gethostname() if member.host == "localhost" else member.host for member in gone}
    others = enumerated([f"{member} on {hosts[member.host]}" for member in gone[1:]])
    who = f"it, or {others}," if others else "it"
    end = f"{who} ended before it could report why, and the launcher ended with status {status}"
    return [ProcessDeath(first.role, first.index, None, hosts[first.host], end)]


def find_cause(
    run: PlannedRun, deaths: Sequence[ProcessDeath], known: Collection[Failure], plan: Plan
) -> Failure | None:
    """Find the process that failed first, and report it in the run's folder if it has no report; None if unknown.

    Args:
        run: the run during which the failure occurred.
        deaths: the ends of processes that guards reported, in order.
        known: reports of earlier attempts.
        plan: the plan of the launch.
    """
    directory = RunDirectory(Path(run.directory))
    failures = [failure for failure in directory.failures if failure not in known]
    reported = {(failure.role, failure.index) for failure in failures}
    # A process without a report was killed. It comes first: the others fail because they need it.
    unreported = [death for death in deaths if (death.role, death.index) not in reported]
    if not unreported and failures:
        unreported = _unresponsive(run, directory, failures[0])
    if unreported or failures:
        # The first process of the run may have died before it set them aside.
        with suppress(OSError):
            directory.set_failures_aside(known)
    began = min([time.time(), *(failure.time for failure in failures)]) - _EARLIER * len(unreported)
    found = []
    for number, death in enumerate(unreported):
        line = _last_line(directory, f"{death.role}-{death.index}")
        round = line.get("round")
        found.append(
            Failure(
                time=began + _EARLIER * number,
                role=death.role,
                index=death.index,
                host=death.host,
                round=round if isinstance(round, int) else None,
                phase=f"after its record `{line['event']}`" if line else "start",
                error=death.end if line else _end_at_start(death, plan),
            )
        )
        _note(directory, found[-1], death.pid)
    return next(iter([*found, *failures]), None)


def _end_at_start(death: ProcessDeath, plan: Plan) -> str:
    """Return how a process ended while it started, with the reason if `/dev/shm` may be one."""
    host = next((member.host for member in plan.world if str(member) == f"{death.role}-{death.index}"), None)
    if death.shm is None or not plan.mpi or host is None:
        return death.end
    why = explanation(sum(member.host == host for member in plan.world), death.shm)
    return f"{death.end}; {why}" if why else death.end


def last_lines(run: PlannedRun, failure: Failure) -> tuple[str, ...]:
    """Return the end of the record of the process that failed."""
    with suppress(OSError):
        path = Path(run.directory, "records", f"{failure.role}-{failure.index}.jsonl")
        return tuple(regular(path).read_text(errors="replace").splitlines()[-_LAST_LINES:])
    return ()


def _unresponsive(run: PlannedRun, directory: RunDirectory, first: Failure) -> list[ProcessDeath]:
    """Return the processes that others waited for without success, if the first failure was a timeout.

    Every process that waits records this after half of its timeout. The process that hangs is one that others wait for
    and that does not wait itself. The first process to reach its timeout is often a different one.
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
    timeout = run.spec["run"]["transport"]["timeout"]
    found = []
    for name, by in waiting.items():
        role, _, index = name.rpartition("-")
        line = lines.get(name, {})
        end = f"it sent nothing for {timeout:g} s, and {', '.join(by)} waited"
        found.append(ProcessDeath(role, int(index), None, str(line.get("host", "")), end))
    return found


def _note(directory: RunDirectory, failure: Failure, pid: int | None) -> None:
    who = failure.role, failure.index, failure.host
    # A full disk may be the cause of the failure: then only the printed message remains.
    with suppress(OSError):
        directory.fail(*who, failure.round, failure.phase, failure.error, at=failure.time, pid=pid)


def _last_line(directory: RunDirectory, process: str) -> dict[str, Any]:
    """Return the last whole line of a process's record; empty without one."""
    with suppress(OSError):
        lines = read_lines(directory.path / "records" / f"{process}.jsonl").lines
        return lines[-1] if lines else {}
    return {}
