"""Points that are played back to back, by one launch or in one process, and how that ends."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcps.errors import HpcpsError
from hpcps.launch.dialects import Launch
from hpcps.launch.prepare import run_folder, spec_of
from hpcps.launch.signals import stops_of
from hpcps.launch.walltime import SUSPENDED
from hpcps.records.run_directory import RunDirectory
from hpcps.spec.load import Point


@dataclass(frozen=True)
class Batch:
    """What is started at once.

    Attributes:
        points: what is played, in this order.
        results: the folder of all results.
        arguments: the command line that led to it, for the record.
        launch: what plays the points, its files written already; None to play them in this process.
        until: when it shall stop at a checkpoint, on the monotonic clock; None: not before it is done.
        trace: whether the roles note what they do when, if they play in this process; a launch's plan says it itself.
    """

    points: tuple[Point, ...]
    results: Path
    arguments: Sequence[str]
    launch: Launch | None = None
    until: float | None = None
    trace: bool = False

    def directory(self, point: Point) -> RunDirectory:
        """Return a point's folder."""
        return RunDirectory(run_folder(point, self.results))


@dataclass(frozen=True)
class Ending:
    """How a batch ended.

    Attributes:
        status: exit status: 0 if all went well.
        text: what happened otherwise.
        failed: the run that failed, by id; None if none did, or nothing was begun.
        over: whether we were told to stop, so that nothing else shall be started.
    """

    status: int = 0
    text: str = ""
    failed: str | None = None
    over: bool = False


def play(batch: Batch, say: Callable[[str], None], tick: Callable[[], None]) -> Ending:
    """Play a batch until its end, or until a run of it fails.

    Args:
        batch: what to play.
        say: called with each line that is printed meanwhile.
        tick: called about twice a second meanwhile, from any thread.

    Raises:
        LaunchError: the launcher cannot be started.
    """
    return _launch(batch, batch.launch, say, tick) if batch.launch else _play_here(batch, say, tick)


def _launch(batch: Batch, launch: Launch, say: Callable[[str], None], tick: Callable[[], None]) -> Ending:
    from hpcps.launch.supervise import supervise

    began = time.time()
    outcome = supervise(launch, say, tick, until=batch.until)
    failed = None
    if outcome.status and not outcome.stopped and outcome.run is not None:
        # A launch that ends before the run has begun tells nothing of the run.
        records = RunDirectory(Path(outcome.run.directory)).records
        if outcome.failure or any(record.stat().st_mtime >= began for record in records):
            failed = outcome.run.run_id
    return Ending(outcome.status, str(outcome), failed, over=outcome.stopped is not None or outcome.suspended)


def _play_here(batch: Batch, say: Callable[[str], None], tick: Callable[[], None]) -> Ending:
    """Play runs in this process, with the ticks going on beside."""
    from hpcps.records.provenance import provenance, source_state
    from hpcps.runtime.inprocess import run_in_process

    finished = threading.Event()

    def follow() -> None:
        while not finished.wait(0.5):
            tick()

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()

    def hear(count: int) -> None:
        """The first signal asks for a checkpoint, the second one ends it at once."""
        if count > 1:
            raise KeyboardInterrupt
        say("hpcps: stopping at the next checkpoint ... (once more: at once)")

    try:
        with stops_of(hear) as stops:

            def stopping() -> bool:
                return bool(stops) or (batch.until is not None and time.monotonic() > batch.until)

            for point in batch.points:
                if stopping():
                    return _suspended(stops)
                directory = batch.directory(point)
                try:
                    directory.create(spec_of(point))
                    code = source_state(Path(__file__).parent)
                    facts = provenance(batch.arguments, code) | {"seed": point.run.seed, "host": socket.gethostname()}
                    if point.run.simulation.kind != "none":
                        facts["clock"] = "virtual"
                    directory.write_provenance(facts, code.uncommitted)
                    if not run_in_process(point.run, point.run_id, directory, stopping, trace=batch.trace):
                        return _suspended(stops)
                except HpcpsError as error:
                    return Ending(1, f"run {point.run_id} ({point.label}): {error}", point.run_id)
    finally:
        finished.set()
        follower.join()
    tick()
    return Ending()


def _suspended(stops: Sequence[int]) -> Ending:
    status = 128 + stops[0] if stops else SUSPENDED
    return Ending(status, "stopped at a checkpoint; run it again to go on", over=True)
