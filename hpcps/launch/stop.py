"""How a launch is asked to stop: by signals to this process, and by a file for the ranks.

It is a file because the ranks on all hosts can read it, whether or not their launcher forwards signals.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

from hpcps.inputs import regular
from hpcps.launch.plan import Plan, PlannedRun
from hpcps.records.run_directory import RunDirectory

_ECHO = 1.0
"""Seconds within which a repeated signal counts as the same request.

A batch system that cancels a job signals all of its processes, and the job script also forwards its signal to us.
"""


@contextmanager
def stops_of(on_stop: Callable[[int], None] = lambda count: None) -> Iterator[list[signal.Signals]]:
    """Collect stop signals instead of ending the process.

    Every Ctrl-C counts, because a person sends it; TERM and HUP count at most once a second. Python handles signals in
    the main thread only; in another thread none is collected.

    Args:
        on_stop: called in the signal handler, with the number of signals so far.
    """
    stops: list[signal.Signals] = []
    noted = 0.0

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal noted
        now = time.monotonic()
        if stops and number != signal.SIGINT and now - noted < _ECHO:
            return
        noted = now
        stops.append(signal.Signals(number))
        on_stop(len(stops))

    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    # A signal that is ignored (under nohup, for example) stays ignored.
    handled = [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]
    if threading.current_thread() is not threading.main_thread():
        handled = []
    before = {number: signal.signal(number, note) for number in handled}
    try:
        yield stops
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


GRACE = 30.0
"""Seconds in which a run may reach its next checkpoint after a person asks it to stop."""

NOTICE = 8.0
"""The same after a signal that batch systems send: they kill the remaining processes after about 20 seconds."""

_BETWEEN_RUNS = 3.0
"""The same while no run is in progress: the first or the next one has not started."""

WRITING = 5.0
"""Extra seconds for a run that is writing a checkpoint at the end of that time."""

_AT_ONCE = "at once"


class StopFile:
    """A file in the folder of the plan whose presence asks the run to stop at its next checkpoint."""

    def __init__(self, plan_file: Path) -> None:
        """Set the path of the file; the file need not exist."""
        self.path = plan_file.with_name(f"{plan_file.name}.stop")
        self._plan_file = plan_file

    def requested(self) -> bool:
        """Whether the launch is asked to stop."""
        return self.path.exists()

    def ask(self, *, at_once: bool = False) -> None:
        """Ask the launch to stop at the next checkpoint or, together with a signal, immediately."""
        with suppress(OSError):  # for example, on a full disk: only the signal remains
            if at_once:
                self.path.write_text(_AT_ONCE)
            else:
                self.path.touch()

    def clear(self) -> None:
        """Remove the request."""
        with suppress(OSError):
            self.path.unlink(missing_ok=True)

    def grace(self, plan: Plan, longest: float) -> float:
        """Return the seconds in which the launch has to stop; they depend on whether a run is in progress.

        Args:
            plan: the plan of the launch.
            longest: seconds in which a run has to reach a checkpoint.
        """
        return longest if (run := current(plan)) and begun(run, self._plan_file) else _BETWEEN_RUNS

    def listener(self, plan: Plan, stop: Callable[[int], None]) -> Callable[[int, FrameType | None], None]:
        """Return a handler of INT, TERM and ALRM for a rank.

        A batch system sends TERM to every process to end a job. The first TERM asks for a checkpoint.

        Args:
            plan: the plan of the launch.
            stop: called with the number of the signal when the rank has to stop immediately.
        """
        more = WRITING

        def handle(number: int, frame: FrameType | None) -> None:
            nonlocal more
            if number == signal.SIGTERM and not self._at_once():
                if not signal.getitimer(signal.ITIMER_REAL)[0]:
                    self.ask()
                    signal.setitimer(signal.ITIMER_REAL, self.grace(plan, NOTICE))
            elif number == signal.SIGALRM and more and writes_checkpoint(plan):
                signal.setitimer(signal.ITIMER_REAL, more)
                more = 0.0
            else:
                stop(signal.SIGTERM if number == signal.SIGALRM else number)

        return handle

    def _at_once(self) -> bool:
        try:
            return regular(self.path).read_text() == _AT_ONCE
        except OSError:
            return False


def current(plan: Plan) -> RunDirectory | None:
    """Return the folder of the first run that is still to be executed."""
    return next((run for run in map(_directory, plan.runs) if run.pending), None)


def begun(run: RunDirectory, plan_file: Path) -> tuple[Path, ...]:
    """Return the records of a run that its roles have started or continued since the plan was written."""
    with suppress(OSError):
        written = plan_file.stat().st_mtime
        return tuple(record for record in run.records if record.stat().st_mtime > written)
    return ()


def writes_checkpoint(plan: Plan) -> bool:
    """Whether the current run is writing a checkpoint."""
    run = current(plan)
    return run is not None and run.checkpoints.under_way


def _directory(run: PlannedRun) -> RunDirectory:
    return RunDirectory(Path(run.directory))
