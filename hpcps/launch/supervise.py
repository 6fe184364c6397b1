"""Run a launcher to its end: forward signals, find the process that failed first, and end all processes."""

from __future__ import annotations

import math
import os
import queue
import re
import signal
import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hpcps.errors import LaunchError
from hpcps.launch.cause import ProcessDeath, find_cause, last_lines, lost_guards, read_death, unguarded
from hpcps.launch.exit_status import ExitStatus
from hpcps.launch.guard import EXPLAINED, LostGuards, adopt_orphans, describe, tie_to_parent
from hpcps.launch.launchers import Launch
from hpcps.launch.losses import Losses
from hpcps.launch.patience import Patience
from hpcps.launch.plan import Plan, PlannedRun
from hpcps.launch.processes import children, name_of, stopped
from hpcps.launch.signs_of_life import SignsOfLife
from hpcps.launch.stop import GRACE, NOTICE, WRITING, StopFile, begun, current, stops_of, writes_checkpoint
from hpcps.records.failure import Failure
from hpcps.records.files import Tail
from hpcps.records.run_directory import RunDirectory
from hpcps.transport.process_group import LostError
from hpcps.transport.rendezvous import Rendezvous

# Seconds that a launcher gets to end its ranks on other hosts.
_LINGER = 2.0
# Seconds that processes on this host may outlive their launcher; MPS needs some seconds to release a GPU.
_OUTLIVE = 5.0
# Seconds that a launcher may take to end after all its ranks have ended, or after one of them has failed.
_OVERDUE = 20.0
# Seconds that a process may be silent while the processes start; later, a factor of the timeout, which is larger than
# those of the guards: they know more.
_START_SILENCE = 30.0
_SILENCE_FACTOR = 2.5
_LAST_LINES = 5
_OUTPUT_LINES = 40
_LAST_BYTES = 65536
_OF_HYDRA = re.compile(  # messages of MPICH's and Intel MPI's own processes
    r"\[(?:mpiexec|proxy:[^\]@]*)@[^\]]*\] \w+ \(.*:\d+\): "
    r"|={83}$|=   (?:BAD TERMINATION|RANK|PID|EXIT CODE|KILLED BY|CLEANING UP|YOU CAN IGNORE)"
    r"|YOUR APPLICATION TERMINATED WITH|This typically refers to a problem with your|Please see the FAQ page for debug"
)
_STOP_STATUSES = tuple(128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))


@dataclass(frozen=True)
class Outcome:
    """How a launch ended.

    Attributes:
        status: exit status for the command line: 0 only if all runs are done; 128 + the signal number if a signal
            stopped the launch.
        stopped: the signal that stopped the launch, or None.
        suspended: whether the run stopped at a checkpoint, no further run started, or a script was stopped before the
            end of the walltime, because a stop was requested.
        finished: whether all runs are done, although a signal stopped the launch.
        run: the run during which a failure occurred, or None.
        failure: the process that failed first, or None if none failed or the process is unknown.
        launcher: how the launcher ended; empty if it exited with `status` by itself.
        last_lines: the last lines of the record of the failed process; without a record, of the launcher's output.
        waited: who had waited for replacements for too long, if it was suspended for that reason.
    """

    status: int
    stopped: signal.Signals | None = None
    suspended: bool = False
    finished: bool = False
    run: PlannedRun | None = None
    failure: Failure | None = None
    launcher: str = ""
    last_lines: tuple[str, ...] = ()
    waited: str = ""

    def __str__(self) -> str:
        if self.stopped:
            then = " after its last run was done" if self.finished else "; run it again to go on"
            return f"stopped by {self.stopped.name}{then}"
        if self.suspended:
            return f"stopped at a checkpoint, as {self.waited or 'its time is nearly over'}"
        if not self.status:
            return "finished"
        where = f"run {self.run.run_id} ({self.run.label}): " if self.run else ""
        what = str(self.failure or self.launcher or f"the launcher ended with status {self.status}")
        return "\n".join([f"{where}{what}", *(f"  {line}" for line in self.last_lines)])


def supervise(
    launch: Launch,
    on_output: Callable[[str], None],
    on_tick: Callable[[], None] = lambda: None,
    tick: float = 0.5,
    grace: float = 5.0,
    until: float | None = None,
    saving: float = 5.0,
) -> Outcome:
    """Start a launch and wait until the launcher and all its processes on this host have ended.

    The first stop signal asks the launch to stop at its next checkpoint. A second signal, or a timeout, ends it
    immediately. If the launcher does not end after the work is done, this function kills it.

    Args:
        launch: the launch to start; its files exist already.
        on_output: called with each line that the launcher and the ranks print.
        on_tick: called about every `tick` seconds while the launch runs.
        tick: seconds.
        grace: seconds that the processes get to end by themselves after the signal to stop immediately.
        until: time on the monotonic clock at which the launch shall stop at a checkpoint, or a script by the signal to
            stop; None: no limit.
        saving: seconds that a script gets to end by itself after that signal.

    Raises:
        LaunchError: the launcher cannot be started.
    """
    script = launch.job.plan.script is not None
    may_lose = launch.job.plan.may_lose
    known = {failure for run in launch.job.plan.runs for failure in RunDirectory(Path(run.directory)).failures}
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()
    tail: deque[str] = deque(maxlen=_OUTPUT_LINES)
    deaths: list[ProcessDeath] = []
    survived: list[ProcessDeath] = []
    stop = StopFile(launch.job.plan_file)
    stop.clear()
    Rendezvous(launch.job.plan_file).clear()
    lost = LostGuards(launch.job.plan_file)
    lost.clear()
    patience, waited = Patience(launch.job.plan), ""
    signs = SignsOfLife(launch.job.plan, launch.job.plan_file, None, _SILENCE_FACTOR * launch.job.plan.timeout)

    def drain() -> None:
        while not lines.empty():
            line = lines.get()
            if death := read_death(line):
                survives = may_lose(f"{death.role}-{death.index}") and not (script and death.exited)
                (survived if survives else deaths).append(death)
            elif line.strip():
                tail.append(line)
                # After a stop signal, a launcher reports every process that ends as an error. Hydra's processes also do
                # when the work is over, if one of them ends late.
                if not stops and not (_OF_HYDRA.match(line) and over()):
                    on_output(line)

    def over() -> bool:
        if script:
            return bool(deaths) or asked or _failed(current(launch.job.plan), known)
        return bool(deaths) or _over(launch, stop, asked, known)

    asked = told_to_end = False
    with stops_of() as stops:
        others = children()
        process = _start(launch)
        adopt_orphans(True)
        assert process.stdout is not None
        reader = threading.Thread(target=_read, args=(process.stdout, lines), daemon=True)
        reader.start()
        checkpoint_by: float | None = None
        deadline: float | None = None
        overdue: float | None = None
        more, hangs = WRITING, False
        try:
            while _running(process, tick):
                drain()
                on_tick()
                now = time.monotonic()
                if until is not None and now > until and not asked:
                    where = "" if script else " at the next checkpoint"
                    on_output(f"hpcps: time is nearly over: stopping{where} ...")
                    stop.ask()
                    asked = True
                    if script:
                        checkpoint_by = now  # it has no checkpoint that hpcps knows of
                        # What its processes report from now on are consequences.
                        told_to_end = not deaths and not _failed(current(launch.job.plan), known)
                if not asked and (waited := patience.is_over(current(launch.job.plan))):
                    on_output(f"hpcps: {waited}; stopping at the next checkpoint ...")
                    stop.ask()
                    asked = True
                if stops and script and checkpoint_by is None:
                    checkpoint_by = now
                if stops and checkpoint_by is None:
                    on_output("hpcps: stopping at the next checkpoint; a second signal stops at once")
                    stop.ask()
                    asked = True
                    longest = GRACE if stops[0] is signal.SIGINT else NOTICE
                    checkpoint_by = now + stop.grace(launch.job.plan, longest)
                if checkpoint_by is not None and now > checkpoint_by and more and writes_checkpoint(launch.job.plan):
                    checkpoint_by, more = checkpoint_by + more, 0.0
                if checkpoint_by is not None and deadline is None and (len(stops) > 1 or now > checkpoint_by):
                    deadline = now + (grace if stops else saving)
                    stop.ask(at_once=True)
                    # The process group, because Intel's mpirun is a script that does not forward signals.
                    _signal_group(process, launch.stop_signal)
                if death := _silent(launch, signs):
                    on_output(f"hpcps: {death.role}-{death.index} on {death.host}: {death.end}; the launch is ended")
                    deaths.append(death)
                    hangs = True
                    break
                unsurvived = bool(deaths or not all(map(may_lose, lost.processes())))
                if overdue is None and (unsurvived or _over(launch, stop, asked, known)):
                    overdue = now + _OVERDUE
                hangs = overdue is not None and now > overdue
                if hangs:
                    on_output(_hanging(launch, process))
                if hangs or (deadline is not None and now > deadline):
                    break
        finally:
            _clean_up(process, others, terminate=launch.stop_signal is not signal.SIGTERM)
            adopt_orphans(False)
    reader.join(timeout=1.0)
    if not reader.is_alive():
        process.stdout.close()
    drain()
    on_tick()
    run = current(launch.job.plan)
    failed = _failed(run, known)
    # What comes later, such as a crash while MPI finalises, takes nothing from the results.
    saved = not failed and _saved(launch, asked)
    if saved and process.returncode and not stops and not hangs:
        on_output(f"hpcps: {launch.command[0]} {describe(process.returncode)} after the results had been written")
    unexplained = hangs or (process.returncode > 0 and process.returncode not in EXPLAINED)
    if unexplained and not failed and not deaths:
        plan = present_plan(launch)
        deaths += survived[-1:] or lost_guards(plan, lost) or unguarded(plan, lost, _status(process.returncode))
    # The status of a launcher that we killed is no information about the run.
    ended = 0 if saved or (hangs and not failed and not deaths) else process.returncode
    unharmed = ended == 0 or (stops and run is not None and not begun(run, launch.job.plan_file))
    suspended = run is not None and bool(unharmed) and not script
    outcome = Outcome(ExitStatus.SUSPENDED if suspended else 0, suspended=suspended, waited=waited)
    if stops:
        finished = run is None and bool(launch.job.plan.runs)
        outcome = Outcome(128 + stops[0], stops[0], suspended, finished)
    elif told_to_end:
        outcome = Outcome(ExitStatus.SUSPENDED, suspended=True)
    elif ended:
        killed = f"{launch.command[0]} on {socket.gethostname()} {describe(ended)}" if ended < 0 and not hangs else ""
        outcome = _explain(launch, _status(ended), killed, deaths, tail, known)
    lost.clear()
    return outcome


def present_plan(launch: Launch) -> Plan:
    """Return the plan of a launch, with the processes that its script has now."""
    plan = launch.job.plan
    return Losses(launch.job.plan_file).present(plan)[0] if plan.script is not None and plan.script.survives else plan


def _silent(launch: Launch, signs: SignsOfLife) -> ProcessDeath | None:
    """Return a process that gives no sign of life, if there is one.

    While the processes start, only this finds a host that is gone: MPI itself waits, and later it looks for itself.
    """
    run = current(launch.job.plan)
    started = run is None or begun(run, launch.job.plan_file)
    try:
        signs.check(math.inf if started else _START_SILENCE)
    except LostError as error:
        return ProcessDeath(error.peer.role, error.peer.index, None, error.host, f"the process is lost: {error.why}")
    return None


def _over(launch: Launch, stop: StopFile, asked: bool, known: Collection[Failure]) -> bool:
    """Whether the launch has no work left: all runs are done, the run has stopped on request, or it has failed."""
    run = current(launch.job.plan)
    if launch.job.plan.script is not None:
        return False
    if run is None or _failed(run, known):
        return True
    records = begun(run, launch.job.plan_file) if asked else ()
    # Between two runs, the first rank removes the request after all ranks have received it.
    return (
        asked
        and all(_last(record).get("event") == "end" for record in records)
        and (bool(records) or not stop.requested())
    )


def _saved(launch: Launch, asked: bool) -> bool:
    """Whether all runs are done, or every role has ended the current one at a checkpoint, as it was asked."""
    if not launch.job.plan.runs:
        return False
    run = current(launch.job.plan)
    if run is None:
        return True
    # The role that keeps the checkpoints has begun if any role has been suspended.
    records = begun(run, launch.job.plan_file) if asked else ()
    return bool(records) and all(_last(record).get("reason") == "suspended" for record in records)


def _failed(run: RunDirectory | None, known: Collection[Failure]) -> bool:
    return run is not None and any(failure not in known for failure in run.failures)


def _last(record: Path) -> dict[str, Any]:
    """Return the last line of a record; empty without one."""
    lines = Tail(record, _LAST_BYTES).read()
    return lines[-1] if lines else {}


def _hanging(launch: Launch, process: subprocess.Popen[str]) -> str:
    """Return a message: the launcher does not end, and these of its processes on this host are stopped."""
    who = ", ".join(map(name_of, stopped(process.pid)))
    who = f"stopped on {socket.gethostname()}: {who}" if who else "one on another host may be stopped"
    what = f"{launch.command[0]} has not ended within {_OVERDUE:g} s of its processes"
    return f"hpcps: {what}, and is killed ({who})"


def _start(launch: Launch) -> subprocess.Popen[str]:

    def detach() -> None:
        # In its own process group: the launcher does not receive Ctrl-C, and we can end remaining processes by group.
        # In our session: a batch system that ends the session of a job then also ends the launcher. If we are killed,
        # the kernel ends it.
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
    """Wait up to so many seconds for the process; return whether it still runs."""
    try:
        process.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def _signal_group(process: subprocess.Popen[str], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _clean_up(process: subprocess.Popen[str], others: set[int], terminate: bool) -> None:
    """End the remaining processes of the launch on this host; the launcher ends those on the other hosts.

    Args:
        process: the launcher; it is killed if it still runs.
        others: our other children, which do not belong to the launch.
        terminate: whether to send SIGTERM first, on which the launcher ends its ranks on other hosts.
    """
    if terminate and process.poll() is None:
        _signal_group(process, signal.SIGTERM)
        _running(process, _LINGER)
    if process.poll() is None:
        _signal_group(process, signal.SIGKILL)
        process.wait()
    deadline = time.monotonic() + _OUTLIVE
    while orphans := children() - others:
        for pid in orphans:
            with suppress(ProcessLookupError, ChildProcessError):
                if time.monotonic() > deadline:
                    os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)
        time.sleep(0.02)


def _explain(
    launch: Launch,
    status: int,
    launcher: str,
    deaths: Sequence[ProcessDeath],
    tail: Sequence[str],
    known: Collection[Failure],
) -> Outcome:
    """Return the outcome of a failed launch: the run and, if known, the process that failed."""
    printed = tuple(tail)[-_LAST_LINES:]
    run = next((run for run in launch.job.plan.runs if RunDirectory(Path(run.directory)).pending), None)
    if run is None:
        return Outcome(status, launcher=launcher, last_lines=printed)
    failure = find_cause(run, deaths, known, present_plan(launch))
    lines = () if launch.job.plan.script is not None else last_lines(run, failure) if failure else printed
    return Outcome(status, run=run, failure=failure, launcher=launcher, last_lines=lines)


def _status(returncode: int) -> int:
    """Return the exit status for a failed launcher, in the convention of a shell.

    The result is never 0 and never the status of a job that stops on request, because nobody has requested it.
    When one rank fails, srun sends SIGTERM to the others and exits with 143.
    """
    status = 128 - returncode if returncode < 0 else returncode
    return 1 if status in _STOP_STATUSES else status
