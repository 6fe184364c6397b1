"""Runs a launcher to its end: passes signals on, finds out who failed first, leaves no process behind."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from hpcps.errors import LaunchError
from hpcps.launch.dialects import Launch
from hpcps.launch.guard import adopt_orphans, tie_to_parent
from hpcps.launch.plan import PlannedRun
from hpcps.records.lines import read_lines
from hpcps.records.run_directory import Failure, RunDirectory

# What the guard of a rank prints.
_DEATH = re.compile(r"hpcps: (\w+)-(\d+) \(pid (\d+)\) on (\S+) (was killed by signal .+|exited with status \d+)")
# Seconds that ranks may outlive their launcher.
_LINGER = 2.0
_LAST_LINES = 5
_OUTPUT_LINES = 40


@dataclass(frozen=True)
class Outcome:
    """How a launch ended.

    Attributes:
        status: exit status for the command line: 0 only if all went well; 128 + the signal if we were told to stop.
        stopped: the signal that told us to stop, or None.
        run: the run during which something failed, or None.
        failure: who failed first, or None if nobody did or nobody knows.
        last_lines: the last lines of the record of the one that failed; without one, of what the launcher printed.
    """

    status: int
    stopped: signal.Signals | None = None
    run: PlannedRun | None = None
    failure: Failure | None = None
    last_lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.stopped:
            return f"stopped by {self.stopped.name}"
        if not self.status:
            return "finished"
        where = f"run {self.run.run_id} ({self.run.label}): " if self.run else ""
        what = str(self.failure) if self.failure else f"the launcher ended with status {self.status}"
        return "\n".join([f"{where}{what}", *(f"  {line}" for line in self.last_lines)])


def supervise(
    launch: Launch,
    on_output: Callable[[str], None],
    on_tick: Callable[[], None] = lambda: None,
    tick: float = 0.5,
    grace: float = 5.0,
) -> Outcome:
    """Start a launch and stay with it until it and all its processes here are gone.

    Args:
        launch: what to start; its files are written already.
        on_output: called with each line that the launcher and the ranks print.
        on_tick: called about every `tick` seconds meanwhile.
        tick: seconds.
        grace: seconds that the processes get to end by themselves once they are told to.

    Raises:
        LaunchError: the launcher cannot be started.
    """
    known = {_identity(failure) for run in launch.job.plan.runs for failure in _directory(run).failures}
    others = _children()
    adopt_orphans(True)
    process = _start(launch)
    assert process.stdout is not None
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
    reader.start()
    tail: deque[str] = deque(maxlen=_OUTPUT_LINES)
    deaths: list[re.Match[str]] = []

    def drain() -> None:
        while not lines.empty():
            line = lines.get()
            if death := _DEATH.search(line):
                deaths.append(death)
            elif line.strip():
                tail.append(line)
                on_output(line)

    with _stops() as stops:
        deadline: float | None = None
        while _running(process, tick):
            drain()
            on_tick()
            if stops and deadline is None:
                deadline = time.monotonic() + grace
                _signal(process, signal.SIGTERM)
            if deadline is not None and time.monotonic() > deadline:
                break
        _clean_up(process, others)
    adopt_orphans(False)
    reader.join(timeout=1.0)
    drain()
    on_tick()
    if stops:
        return Outcome(128 + stops[0], stops[0])
    if process.returncode == 0:
        return Outcome(0)
    return _explain(launch, _status(process.returncode), deaths, tail, known)


def _start(launch: Launch) -> subprocess.Popen[str]:

    def detach() -> None:
        # A group of its own: Ctrl-C reaches us alone, and what is left over can be ended by its group. Not a session:
        # a batch system that ends a job's session shall end the launcher too, as the kernel does if we are killed.
        os.setpgid(0, 0)
        tie_to_parent(signal.SIGTERM)

    try:
        return subprocess.Popen(
            launch.command,
            env=launch.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            preexec_fn=detach,
        )
    except OSError as error:
        raise LaunchError(f"{launch.command[0]} cannot be started: {error.strerror}") from error


def _read(stream: IO[str], lines: queue.SimpleQueue[str]) -> None:
    for line in stream:
        lines.put(line.rstrip("\n"))


@contextmanager
def _stops() -> Iterator[list[signal.Signals]]:
    """Collect the signals that tell us to stop, instead of dying of them."""
    stops: list[signal.Signals] = []

    def note(number: int, frame: FrameType | None) -> None:
        stops.append(signal.Signals(number))

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, note) for number in numbers}
    try:
        yield stops
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _running(process: subprocess.Popen[str], seconds: float) -> bool:
    """Wait for the process for some seconds; say whether it still runs."""
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def _signal(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)


def _clean_up(process: subprocess.Popen[str], others: set[int]) -> None:
    """End whatever of the launch is left on this machine; the launcher does so on the others.

    Args:
        process: the launcher; it is killed if it still runs.
        others: children of ours that have nothing to do with it.
    """
    if process.poll() is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + _LINGER
    while orphans := _children() - others:
        for pid in orphans:
            with suppress(ProcessLookupError, ChildProcessError):
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.02)


def _children() -> set[int]:
    """Find the children of this process, dead ones that nobody waited for included."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            parent = entry.read_text(errors="replace").rpartition(")")[2].split()[1]
            if int(parent) == os.getpid():
                found.add(int(entry.parent.name))
    return found


def _explain(
    launch: Launch, status: int, deaths: list[re.Match[str]], tail: deque[str], known: set[tuple[object, ...]]
) -> Outcome:
    """Find out who failed first, in which run, and note it in that run's folder if nobody has."""
    run = next((run for run in launch.job.plan.runs if not _directory(run).done), None)
    if run is None:
        return Outcome(status, last_lines=tuple(tail)[-_LAST_LINES:])
    directory = _directory(run)
    failures = [failure for failure in directory.failures if _identity(failure) not in known]
    reported = {(failure.role, failure.index) for failure in failures}
    # A process that could not even report was killed, and comes first: others fail because it is gone.
    for role, index, _, host, end in reversed([death.groups() for death in deaths]):
        if (role, int(index)) not in reported:
            round, phase = _last_seen(directory.path, role, int(index))
            error = f"the process {end}"
            failures.insert(0, Failure(time.time(), role, int(index), host, round, phase, error))
            if directory.path.is_dir():
                directory.fail(role, int(index), host, round, phase, error)
    failure = next(iter(failures), None)
    if failure is None:
        return Outcome(status, run=run, last_lines=tuple(tail)[-_LAST_LINES:])
    record = _record(directory.path, failure.role, failure.index)
    return Outcome(status, run=run, failure=failure, last_lines=tuple(record[-_LAST_LINES:]))


def _last_seen(directory: Path, role: str, index: int) -> tuple[int | None, str]:
    """The round and phase of a process that died, as far as its record tells."""
    with suppress(OSError):
        lines = read_lines(directory / "records" / f"{role}-{index}.jsonl").lines
        if lines:
            round = lines[-1].get("round")
            return (round if isinstance(round, int) else None), f"after {lines[-1].get('event')}"
    return None, "start"


def _record(directory: Path, role: str, index: int) -> list[str]:
    with suppress(OSError):
        text = (directory / "records" / f"{role}-{index}.jsonl").read_text(errors="replace")
        return text.splitlines()
    return []


def _directory(run: PlannedRun) -> RunDirectory:
    return RunDirectory(Path(run.directory))


def _identity(failure: Failure) -> tuple[object, ...]:
    return failure.role, failure.index, failure.time


def _status(returncode: int) -> int:
    """The exit status of a shell for the launcher's; never 0."""
    return 128 - returncode if returncode < 0 else returncode
