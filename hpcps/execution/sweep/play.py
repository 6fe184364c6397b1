"""Execute the points of a sweep until each is done or has failed in every attempt."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from hpcps.execution.sweep.batch import Batch, Ending, play
from hpcps.execution.sweep.queue import PointQueue
from hpcps.execution.sweep.slots import Slots
from hpcps.launch.exit_status import ExitStatus
from hpcps.launch.limits import Cores
from hpcps.launch.prepare import Site, prepare
from hpcps.launch.rank_pair import DeviceTrials
from hpcps.launch.stop import stops_of
from hpcps.spec.load import Point


class Display(Protocol):
    """Shows the progress of a sweep."""

    def say(self, text: str) -> None:
        """Print a line."""

    def update(self) -> None:
        """Print the new progress of the runs."""


@dataclass(frozen=True, kw_only=True)
class SweepRun:
    """The settings of one execution of a sweep.

    Attributes:
        results: the folder of all results.
        folder: the folder for the files of the launches.
        site: the launcher and the hosts; None without launches.
        retry: the number of times that a failed run is repeated.
        shares: the cores of each launch that runs at the same time; a single share means all cores.
        until: time on the monotonic clock at which to stop at a checkpoint; None: no limit.
        trace: whether every process writes a trace.
    """

    results: Path
    folder: Path
    site: Site | None = None
    retry: int = 0
    shares: Sequence[Cores] = ((),)
    until: float | None = None
    trace: bool = False

    def play(self, points: Sequence[Point], display: Display) -> int:
        """Execute points; return the exit status.

        Returns:
            `DONE`, `FAILED` if any run failed, 128 + the signal number after a stop signal, or `SUSPENDED` if the
            walltime was nearly over.

        Raises:
            LaunchError: a launch cannot start.
        """
        queue = PointQueue(points, self.retry)
        play = _Play(self, queue, display)
        status = play.one_by_one() if len(self.shares) == 1 else play.side_by_side()
        if len(points) > 1 and queue.failed:
            display.say(f"hpcps: {len(queue.failed)} of {len(points)} runs failed:\n{queue.report()}")
        return status or (ExitStatus.FAILED if queue.failed else ExitStatus.DONE)


class _Play:
    """One execution of a sweep."""

    def __init__(self, sweep: SweepRun, queue: PointQueue, display: Display) -> None:
        self._sweep = sweep
        self._queue = queue
        self._display = display
        self._launches = 0
        self._trials = DeviceTrials()

    def one_by_one(self) -> int:
        """Execute one batch after another, from this process."""
        while self._queue.left:
            if self._late:
                return ExitStatus.SUSPENDED
            batch = self._next()
            ending = play(batch, self._display.say, self._display.update)
            self._end_batch(batch, ending)
            if ending.over:
                return ending.status
        return 0

    def side_by_side(self) -> int:
        """Execute as many batches at a time as there are shares of the cores."""
        slots = Slots(self._sweep.shares, self._display.say)
        status = passed = 0
        with stops_of() as stops:
            while slots.busy or (self._queue.left and not status):
                if self._late and not slots.busy:
                    return status or ExitStatus.SUSPENDED
                while self._queue.left and slots.free and not status and not self._late:
                    slots.start(self._next())
                for batch, ending in slots.wait():
                    self._end_batch(batch, ending)
                    if ending.over:
                        status = status or ending.status
                for number in stops[passed:]:
                    slots.stop(number)
                    status = 128 + stops[0]
                passed = len(stops)
                self._display.update()
        return status

    @property
    def _late(self) -> bool:
        """Whether it is too late to start a batch."""
        return self._sweep.until is not None and time.monotonic() > self._sweep.until

    def _next(self) -> Batch:
        """Return the next batch, with the files of its launch written."""
        sweep = self._sweep
        points = self._queue.take(len(sweep.shares))
        batch = Batch(points, sweep.results, sys.argv, until=sweep.until, trace=sweep.trace)
        if points[0].run.transport.in_process:
            return batch
        assert sweep.site is not None
        self._launches += 1
        name = "conf" if self._launches == 1 else f"conf-{self._launches}"
        (launch,) = prepare(
            points,
            sweep.results,
            sweep.folder / name,
            sweep.site,
            trace=sweep.trace,
            supervised=True,
        )
        found = self._trials.device_memory([point.run for point in points], launch, sweep.site.launcher)
        launch = replace(launch, job=replace(launch.job, plan=replace(launch.job.plan, device_memory=found)))
        launch.write()
        return replace(batch, launch=launch)

    def _end_batch(self, batch: Batch, ending: Ending) -> None:
        if ending.status:
            self._display.say(f"hpcps: {ending.text}")
        said = self._queue.end_batch(batch.points, ending, lambda point: batch.directory(point).done)
        if said:
            self._display.say(f"hpcps: {said}")
