"""Runs a launcher to its end: passes signals on, finds out who failed first, leaves no process behind."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hpcps.errors import LaunchError
from hpcps.launch.cause import Death, find_cause, last_lines, read_death
from hpcps.launch.dialects import Launch
from hpcps.launch.guard import adopt_orphans, tie_to_parent
from hpcps.launch.plan import PlannedRun
from hpcps.launch.rendezvous import Rendezvous
from hpcps.launch.signals import stops_of
from hpcps.launch.stop import PATIENCE, StopFile
from hpcps.launch.walltime import SUSPENDED
from hpcps.records.run_directory import Failure, RunDirectory

# Seconds that a launcher gets to end its ranks elsewhere.
_LINGER = 2.0
# Seconds that processes here may outlive their launcher; MPS takes some to let a GPU go.
_OUTLIVE = 5.0
_LAST_LINES = 5
_OUTPUT_LINES = 40
_TOLD_TO_STOP = tuple(128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))


@dataclass(frozen=True)
class Outcome:
    """How a launch ended.

    Attributes:
        status: exit status for the command line: 0 only if all is done; 128 + the signal if we were told to stop.
        stopped: the signal that told us to stop, or None.
        suspended: whether the run stopped at a checkpoint, or no further one began, because it was time to.
        run: the run during which something failed, or None.
        failure: who failed first, or None if nobody did or nobody knows.
        last_lines: the last lines of the record of the one that failed; without one, of what the launcher printed.
    """

    status: int
    stopped: signal.Signals | None = None
    suspended: bool = False
    run: PlannedRun | None = None
    failure: Failure | None = None
    last_lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        if self.stopped:
            return f"stopped by {self.stopped.name}" + ("; run it again to go on" if self.suspended else "")
        if self.suspended:
            return "stopped at a checkpoint, as its time is nearly over"
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
    until: float | None = None,
) -> Outcome:
    """Start a launch and stay with it until it and all its processes here are gone.

    The first signal that tells us to stop asks it to do so at its next checkpoint; a second one, or the end of our
    patience, ends it at once.

    Args:
        launch: what to start; its files are written already.
        on_output: called with each line that the launcher and the ranks print.
        on_tick: called about every `tick` seconds meanwhile.
        tick: seconds.
        grace: seconds that the processes get to end by themselves once they are told to do so at once.
        until: when it shall stop at a checkpoint, on the monotonic clock; None: not before it is done.

    Raises:
        LaunchError: the launcher cannot be started.
    """
    known = {failure for run in launch.job.plan.runs for failure in _directory(run).failures}
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    tail: deque[str] = deque(maxlen=_OUTPUT_LINES)
    deaths: list[Death] = []
    stop = StopFile(launch.job.plan_file)
    stop.clear()
    Rendezvous(launch.job.plan_file).clear()

    def drain() -> None:
        while not lines.empty():
            line = lines.get()
            if death := read_death(line):
                deaths.append(death)
            elif line.strip():
                tail.append(line)
                # A launcher that is told to end complains of processes that do.
                if not stops:
                    on_output(line)

    with stops_of() as stops:
        others = _children()
        process = _start(launch)
        adopt_orphans(True)
        assert process.stdout is not None
        reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
        reader.start()
        patience: float | None = None
        deadline: float | None = None
        try:
            while _running(process, tick):
                drain()
                on_tick()
                now = time.monotonic()
                if until is not None and now > until and not stop.requested():
                    on_output("hpcps: time is nearly over: stopping at the next checkpoint ...")
                    stop.ask()
                if stops and patience is None:
                    on_output("hpcps: stopping at the next checkpoint ... (once more: at once)")
                    stop.ask()
                    patience = now + PATIENCE
                if patience is not None and deadline is None and (len(stops) > 1 or now > patience):
                    deadline = now + grace
                    stop.ask(at_once=True)
                    # Intel's mpirun is a script, which would not pass it on.
                    _signal_group(process, launch.stop_signal)
                if deadline is not None and now > deadline:
                    break
        finally:
            _clean_up(process, others, patient=launch.stop_signal is not signal.SIGTERM)
            adopt_orphans(False)
    reader.join(timeout=1.0)
    if not reader.is_alive():
        process.stdout.close()
    drain()
    on_tick()
    suspended = process.returncode == 0 and any(not _directory(run).done for run in launch.job.plan.runs)
    if stops:
        return Outcome(128 + stops[0], stops[0], suspended)
    if process.returncode == 0:
        return Outcome(SUSPENDED if suspended else 0, suspended=suspended)
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


def _running(process: subprocess.Popen[str], seconds: float) -> bool:
    """Wait for the process for some seconds; say whether it still runs."""
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def _signal_group(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _clean_up(process: subprocess.Popen[str], others: set[int], patient: bool) -> None:
    """End whatever of the launch is left on this machine; the launcher does so on the others.

    Args:
        process: the launcher; it is killed if it still runs.
        others: children of ours that have nothing to do with it.
        patient: whether it first gets the time to end its ranks on other machines, which it does on SIGTERM.
    """
    if patient and process.poll() is None:
        _signal_group(process, signal.SIGTERM)
        _running(process, _LINGER)
    if process.poll() is None:
        _signal_group(process, signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + _OUTLIVE
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
    launch: Launch, status: int, deaths: Sequence[Death], tail: Sequence[str], known: Collection[Failure]
) -> Outcome:
    """Say in which run it failed and, if anybody knows, who did."""
    said = tuple(tail)[-_LAST_LINES:]
    run = next((run for run in launch.job.plan.runs if not _directory(run).done), None)
    if run is None:
        return Outcome(status, last_lines=said)
    failure = find_cause(run, deaths, known)
    return Outcome(status, run=run, failure=failure, last_lines=last_lines(run, failure) if failure else said)


def _directory(run: PlannedRun) -> RunDirectory:
    return RunDirectory(Path(run.directory))


def _status(returncode: int) -> int:
    """The exit status of a shell for the launcher's; never 0, nor that of a job that was told to stop: it was not.

    srun ends with 143 when one rank failed, because it then sends SIGTERM to the others.
    """
    status = 128 - returncode if returncode < 0 else returncode
    return 1 if status in _TOLD_TO_STOP else status
