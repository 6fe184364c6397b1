"""A batch: points that run back to back in one launch or in one process, and how the batch ended."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hpcps.errors import HpcpsError
from hpcps.execution.sweep.claims import directory_of
from hpcps.execution.sweep.resizing import end_of_epoch
from hpcps.execution.tracking import TrackingProcess
from hpcps.launch.exit_status import ExitStatus
from hpcps.launch.launchers import Launch
from hpcps.launch.stop import stops_of
from hpcps.records.run_directory import RunDirectory
from hpcps.spec.point import Point

if TYPE_CHECKING:
    from hpcps.execution.observer import Observer


@dataclass(frozen=True)
class Batch:
    """Points that start together.

    Attributes:
        points: the points, in the order of execution.
        results: the folder of all results.
        arguments: the command line, for the provenance.
        launch: the launch that runs the points, with its files written; None to run them in this process.
        until: time on the monotonic clock at which the batch shall stop at a checkpoint; None: no limit.
        trace: whether the roles write traces, if they run in this process; for a launch, its plan holds this setting.
    """

    points: tuple[Point, ...]
    results: Path
    arguments: Sequence[str]
    launch: Launch | None = None
    until: float | None = None
    trace: bool = False

    def directory(self, point: Point) -> RunDirectory:
        """Return a point's folder."""
        return directory_of(point, self.results)


@dataclass(frozen=True)
class Ending:
    """How a batch ended.

    Attributes:
        status: exit status: 0 if the batch succeeded.
        text: the error otherwise.
        failed: the id of the run that failed; None if none failed, or if none had started.
        over: whether a stop was requested, so that no other batch shall start.
        resizes: whether a run has stopped to go on with another number of workers.
    """

    status: int = 0
    text: str = ""
    failed: str | None = None
    over: bool = False
    resizes: bool = False


def execute(batch: Batch, say: Callable[[str], None], tick: Callable[[], None]) -> Ending:
    """Execute a batch to its end, or until one of its runs fails.

    Args:
        batch: the batch.
        say: called with each line that is printed meanwhile.
        tick: called about twice a second meanwhile, from any thread.

    Raises:
        LaunchError: the launcher cannot be started.
    """
    return _launch(batch, batch.launch, say, tick) if batch.launch else _execute_here(batch, say, tick)


def _launch(batch: Batch, launch: Launch, say: Callable[[str], None], tick: Callable[[], None]) -> Ending:
    from hpcps.launch.supervise import supervise

    began = time.time()
    outcome = supervise(launch, say, tick, until=batch.until)
    failed = None
    if outcome.status and not outcome.stopped and outcome.run is not None:
        # If a launch ends before the run has started, the run itself has not failed.
        records = RunDirectory(Path(outcome.run.directory)).records
        if outcome.failure or any(record.stat().st_mtime >= began for record in records):
            failed = outcome.run.run_id
    if outcome.suspended and not outcome.stopped and _is_at_resize(batch):
        return Ending(resizes=True)
    return Ending(outcome.status, str(outcome), failed, over=outcome.stopped is not None or outcome.suspended)


def _is_at_resize(batch: Batch) -> bool:
    """Return whether the first run that is left has stopped to go on with another number of workers."""
    point = next(point for point in batch.points if batch.directory(point).pending)
    directory = batch.directory(point)
    return directory.resize_requested is not None and end_of_epoch(directory, point.present) is not None


def _execute_here(batch: Batch, say: Callable[[str], None], tick: Callable[[], None]) -> Ending:
    """Execute the runs in this process; another thread calls `tick`."""
    finished = threading.Event()

    def follow() -> None:
        while not finished.wait(0.5):
            tick()

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()

    def on_stop(count: int) -> None:
        """Stop at the next checkpoint after the first signal, immediately after the second."""
        if count > 1:
            raise KeyboardInterrupt
        say("hpcps: stopping at the next checkpoint; a second signal stops at once")

    try:
        with TrackingProcess() as tracking, stops_of(on_stop) as stops:

            def stopping() -> bool:
                return bool(stops) or (batch.until is not None and time.monotonic() > batch.until)

            for point in batch.points:
                if stopping():
                    return _suspended(stops)
                try:
                    if not execute_point(point, batch.results, batch.arguments, stopping, tracking, trace=batch.trace):
                        return _suspended(stops) if stopping() else Ending(resizes=True)
                except HpcpsError as error:
                    return Ending(ExitStatus.FAILED, f"run {point.run_id} ({point.label}): {error}", point.run_id)
            if stops:
                name = signal.Signals(stops[0]).name
                return Ending(128 + stops[0], f"stopped by {name} after its last run was done", over=True)
    finally:
        finished.set()
        follower.join()
    tick()
    return Ending()


def execute_point(
    point: Point,
    results: Path,
    arguments: Sequence[str],
    stop: Callable[[], bool],
    tracking: TrackingProcess,
    *,
    trace: bool = False,
    observer: Observer | None = None,
) -> bool:
    """Execute a run in this process, in its folder; return whether it is done, or has stopped at a checkpoint.

    It also stops where an epoch ends if it is to go on with another number of workers; see `as_requested`.

    Args:
        point: the run.
        results: the folder of all results.
        arguments: the command line, for the provenance.
        stop: returns whether the run shall stop at its next checkpoint.
        tracking: gives the records of the run to its trackers.
        trace: whether the roles write traces.
        observer: follows all roles.

    Raises:
        HpcpsError: the run cannot start, or a role failed.
    """
    from hpcps.execution.inprocess import run_in_process
    from hpcps.records.provenance import provenance, provenance_of, source_state

    directory, spec = directory_of(point, results), point.spec
    directory.create(spec)
    code = source_state(Path(__file__).parent)
    facts = provenance(arguments, code) | provenance_of(spec) | {"host": socket.gethostname()}
    if point.run.simulation.kind != "none":
        facts["clock"] = "virtual"
    directory.write_provenance(facts, code.uncommitted)
    run = point.present
    if observer is None and run.callbacks:
        from hpcps.execution.reporter import Reporter

        observer = reporter = Reporter(run, point.label)
        reporter.resume(directory)
    with tracking.of(run, directory):
        resize = partial(_is_to_resize, directory)
        return run_in_process(run, directory, stop, resize=resize, trace=trace, observer=observer)


def _is_to_resize(directory: RunDirectory) -> bool:
    return directory.resize_requested is not None


def _suspended(stops: Sequence[int]) -> Ending:
    status = 128 + stops[0] if stops else ExitStatus.SUSPENDED
    return Ending(status, "stopped at a checkpoint; run it again to go on", over=True)
