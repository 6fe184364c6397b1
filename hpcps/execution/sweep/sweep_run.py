"""Executes the points of a sweep: their order and repetitions, until each is done or has failed in every attempt."""

from __future__ import annotations

import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from hpcps.errors import RunError
from hpcps.execution.sweep.batch import Batch, Ending, execute
from hpcps.execution.sweep.claims import directory_of
from hpcps.execution.sweep.resizing import as_requested
from hpcps.execution.sweep.slots import Slots
from hpcps.launch.exit_status import ExitStatus
from hpcps.launch.gpu_mpi import DeviceTrials
from hpcps.launch.limits import Cores, memory_limit
from hpcps.launch.local_rank import same_host
from hpcps.launch.plan import Plan
from hpcps.launch.prepare import Site, launch_kind, prepare
from hpcps.launch.stop import stops_of
from hpcps.spec.point import Point

_SHARE_OF_MEMORY = 1 / 8
"""The part of the memory of this machine, or of its control group, that the checkpoints of the runs may take."""


def stays_here(plan: Plan) -> bool:
    """Return whether all processes of a launch are on this host, and so are those that may replace them."""
    here = socket.gethostname()
    return not plan.spares and all(same_host(rank.host, here) for rank in plan.world)


@dataclass(frozen=True)
class FailedPoint:
    """A point that failed in every attempt.

    Attributes:
        attempts: the number of attempts.
        cause: the first line of the error of the last attempt.
    """

    point: Point
    attempts: int
    cause: str


class PointQueue:
    """Returns points to run and records their outcomes.

    A run that fails is repeated up to `retry` times. The other points run in any case.
    """

    def __init__(self, points: Sequence[Point], retry: int) -> None:
        """Queue the points in their order.

        Args:
            points: the points to run.
            retry: the number of times that a failed run is repeated.
        """
        self.left = list(points)
        self.failed: list[FailedPoint] = []
        self._retry = retry
        self._attempts: Counter[str] = Counter()

    def take(self, jobs: int) -> tuple[Point, ...]:
        """Take points that can run back to back, starting with the next one.

        Starting the processes takes longer than many small runs, so a single launch takes all possible points. If
        several launches run at a time, each takes a part of the remaining points. The parts become smaller, so that all
        launches end at about the same time.
        """
        kind = launch_kind(self.left[0])
        alike = [point for point in self.left if launch_kind(point) == kind]
        taken = alike if jobs == 1 else alike[: max(1, -(-len(alike) // (2 * jobs)))]
        self.left = [point for point in self.left if point not in taken]
        return tuple(taken)

    def end_batch(self, points: Sequence[Point], ending: Ending, done: Callable[[Point], bool]) -> str:
        """Record the outcome of points; return a message about those that are not done."""
        missing = [point for point in points if not done(point)]
        if ending.over or ending.resizes or not missing:
            self.left = missing + self.left
            # If points of this batch are missing, its own message says so.
            more = len(self.left) if ending.over and not missing else 0
            return f"run it again for {more} more run{'s' * (more > 1)}" if more else ""
        # If no run had started, the launch failed, and another launch of these points would fail too.
        blamed = [point for point in missing if ending.failed in (None, point.run_id)]
        others = [point for point in missing if point not in blamed]
        again, messages = [], []
        for point in blamed:
            self._attempts[point.run_id] += 1
            attempts = self._attempts[point.run_id]
            if attempts <= self._retry:
                again.append(point)
            else:
                self.failed.append(FailedPoint(point, attempts, ending.text.partition("\n")[0]))
        if again:
            names = ", ".join(point.run_id for point in again)
            messages.append(f"{names}: tried again, {attempts} of {self._retry} times")
        self.left = again + others + self.left
        if self.left and not again:
            messages.append(f"continuing with {len(self.left)} more run{'s' * (len(self.left) > 1)}")
        return "; ".join(messages)

    def report(self) -> str:
        """Return a list of the failed points, in the order of the sweep."""
        lines = []
        for failed in sorted(self.failed, key=lambda failed: failed.point.index):
            tries = f"in {failed.attempts} attempts: " if failed.attempts > 1 else ""
            cause = failed.cause.removeprefix(f"run {failed.point.run_id} ({failed.point.label}): ")
            lines.append(f"  {failed.point.run_id}  {failed.point.label}: {tries}{cause}")
        return "\n".join(lines)


class Display(Protocol):
    """Shows the progress of a sweep."""

    def say(self, text: str) -> None:
        """Print a line."""

    def update(self) -> None:
        """Print the new progress of the runs."""


class SweepRun:
    """One execution of the points of a sweep."""

    def __init__(
        self,
        points: Sequence[Point],
        display: Display,
        *,
        results: Path,
        folder: Path,
        site: Site | None = None,
        retry: int = 0,
        shares: Sequence[Cores] = ((),),
        until: float | None = None,
        trace: bool = False,
    ) -> None:
        """Queue the points.

        Args:
            points: the points to execute.
            display: shows the progress.
            results: the folder of all results.
            folder: the folder for the files of the launches.
            site: the launcher and the hosts; None without launches.
            retry: the number of times that a failed run is repeated.
            shares: the cores of each launch that runs at the same time; a single share means all cores.
            until: time on the monotonic clock at which to stop at a checkpoint; None: no limit.
            trace: whether every process writes a trace.
        """
        self._queue = PointQueue(points, retry)
        self._points = tuple(points)
        self._count = len(points)
        self._display = display
        self._results = results
        self._folder = folder
        self._site = site
        self._shares = shares
        self._until = until
        self._trace = trace
        self._launches = 0
        self._trials = DeviceTrials()

    def execute(self) -> int:
        """Execute the points; return the exit status.

        Returns:
            `DONE`, `FAILED` if any run failed, 128 + the signal number after a stop signal, or `SUSPENDED` if the
            walltime was nearly over.

        Raises:
            LaunchError: a launch cannot start.
        """
        try:
            status = self._one_by_one() if len(self._shares) == 1 else self._side_by_side()
        finally:
            self._leave_memory(self._points)
        failed = self._queue.failed
        if self._count > 1 and failed:
            self._display.say(f"hpcps: {len(failed)} of {self._count} runs failed:\n{self._queue.report()}")
        return status or (ExitStatus.FAILED if failed else ExitStatus.DONE)

    def _one_by_one(self) -> int:
        """Execute one batch after another, from this process."""
        while self._queue.left:
            if self._late:
                return ExitStatus.SUSPENDED
            batch = self._next()
            ending = execute(batch, self._display.say, self._display.update)
            self._end_batch(batch, ending)
            if ending.over:
                return ending.status
        return 0

    def _side_by_side(self) -> int:
        """Execute as many batches at a time as there are shares of the cores."""
        slots = Slots(self._shares, self._display.say)
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
        return self._until is not None and time.monotonic() > self._until

    def _next(self) -> Batch:
        """Return the next batch, with the files of its launch written."""
        self._queue.left = [self._resized(point) for point in self._queue.left]
        points = self._queue.take(len(self._shares))
        batch = Batch(points, self._results, sys.argv, until=self._until, trace=self._trace)
        if points[0].run.transport.in_process:
            self._use_memory(batch)
            return batch
        assert self._site is not None
        self._launches += 1
        name = "conf" if self._launches == 1 else f"conf-{self._launches}"
        (launch,) = prepare(points, self._results, self._folder / name, self._site, trace=self._trace, supervised=True)
        found = self._trials.device_memory([point.run for point in points], launch, self._site.launcher)
        launch = replace(launch, job=replace(launch.job, plan=replace(launch.job.plan, device_memory=found)))
        launch.write()
        batch = replace(batch, launch=launch)
        self._use_memory(batch)
        return batch

    def _use_memory(self, batch: Batch) -> None:
        """Have runs that write checkpoints within epochs do so in memory, if all processes are on this host."""
        if batch.launch and not stays_here(batch.launch.job.plan):
            self._leave_memory(batch.points)
            return
        most = memory_limit() * _SHARE_OF_MEMORY / len(self._shares)
        for point in batch.points:
            if point.run.checkpoint.rounds:
                batch.directory(point).checkpoints.use_memory(most)

    def _leave_memory(self, points: Sequence[Point]) -> None:
        """Move the checkpoints that runs have in memory to the disk, and leave nothing there."""
        for point in points:
            try:
                directory_of(point, self._results).checkpoints.leave_memory()
            except RunError as error:
                self._display.say(f"hpcps: run {point.run_id} ({point.label}): {error}")

    def _resized(self, point: Point) -> Point:
        """Return a point with its present number of workers, which a request may have changed."""

        def try_placement(resized: Point) -> None:
            if self._site is not None and not resized.run.transport.in_process:
                prepare([resized], self._results, self._folder / "conf", self._site, supervised=True)

        return as_requested(point, self._results, self._display.say, try_placement)

    def _end_batch(self, batch: Batch, ending: Ending) -> None:
        if ending.status:
            self._display.say(f"hpcps: {ending.text}")
        said = self._queue.end_batch(batch.points, ending, lambda point: not batch.directory(point).pending)
        if said:
            self._display.say(f"hpcps: {said}")
        self._leave_memory([point for point in batch.points if point not in self._queue.left])
