"""Which runs of a sweep are left for this process, and whether they can be executed here."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path

from hpcps.errors import HpcpsError, RunError
from hpcps.launch.batch import predecessors
from hpcps.records.inventory import UNDAMAGED, Damage
from hpcps.records.locate import run_folder
from hpcps.records.run_directory import RunDirectory
from hpcps.records.sweep import write_sweep
from hpcps.spec.point import Point
from hpcps.training.build import find_framework
from hpcps.training.trial import try_components, try_data


def refusals(points: Sequence[Point], folder: Path, *, framework: bool = True) -> Iterator[HpcpsError]:
    """Yield an error for each reason why points cannot run here: results, data files, frameworks.

    Args:
        points: the points, at least one.
        folder: the folder for results, which is created if it is missing.
        framework: whether the framework that trains is required.
    """
    checks: list[Callable[[], None]] = [RunDirectory(folder).check_writable]
    checks += [partial(try_data, run) for run in {p.run.data.model_dump_json(): p.run for p in points}.values()]
    if framework:
        checks += [partial(find_framework, name) for name in sorted({p.run.model.backend for p in points})]
    for check in checks:
        try:
            check()
        except HpcpsError as error:
            yield error


def directory_of(point: Point, results: Path) -> RunDirectory:
    """Return the folder of a point's run."""
    return RunDirectory(run_folder(point, results))


def is_done(point: Point, results: Path) -> bool:
    """Tell whether a point's run has finished, and all its files are there and as they were written.

    One that is to start from the beginning is not done.
    """
    directory = directory_of(point, results)
    try:
        return not directory.restarts and directory.done and not directory.damage(contents=True)
    except OSError:  # for example not readable: `Unfinished.check_ready` reports the reason
        return False


def damage_of(point: Point, results: Path) -> Damage:
    """Return which files of a point's run are missing or have changed."""
    try:
        return directory_of(point, results).damage(contents=True)
    except OSError:  # see `is_done`
        return UNDAMAGED


INTERVAL = 0.5
"""Seconds to wait before runs that another process executes are claimed again."""


class Unfinished:
    """The points of an experiment that are left to execute: the steps in which every executor deals with them.

    Several processes may execute one experiment at a time. Each claims the points that no other has claimed, executes
    them, and waits for the others.

    Attributes:
        left: the points that are not done, or all points if runs start from the beginning.
        done: the number of the other points.
    """

    def __init__(
        self,
        points: Sequence[Point],
        whole: Sequence[Point],
        *,
        file: Path,
        overrides: Sequence[str],
        results: Path,
        resume: bool,
    ) -> None:
        """Find the points that are left.

        Args:
            points: the points to execute.
            whole: all points of the experiment, at least one.
            file: the experiment file.
            overrides: the values of keys that were set.
            results: the folder of all results.
            resume: whether to skip runs that are done, and to resume others from their checkpoints.
        """
        self.left = [point for point in points if not (resume and is_done(point, results))]
        self.done = len(points) - len(self.left)
        self._results, self._resume = results, resume
        self._experiment = results / whole[0].run.name
        self._sweep = file, overrides, [point.spec for point in whole]

    def check_ready(self, *, framework: bool = True) -> None:
        """Find out before anything starts whether results can be written, data be read, and components be used.

        Args:
            framework: whether this Python, which the processes also use, must have the framework that trains.

        Raises:
            HpcpsError: the first reason why the points cannot run here.
        """
        for error in refusals(self.left, self._experiment.absolute(), framework=framework):
            raise error
        try_components(point.run for point in self.left)

    def write_sweep(self) -> None:
        """Write all points of the experiment to its folder.

        Raises:
            RunError: it cannot be written, and there are points left. If not, the results may be read-only.
        """
        try:
            write_sweep(self._experiment, *self._sweep)
        except RunError:
            if self.left:
                raise

    def execute(
        self, execute: Callable[[Sequence[Point]], bool], wait: Callable[[Sequence[Point]], bool] | None = None
    ) -> None:
        """Execute all points that are left, those that this process can claim; wait for those that others execute.

        Args:
            execute: executes claimed points, after a `request` of each; returns whether to go on.
            wait: waits for `INTERVAL`, while others execute the given points; returns whether to go on.
        """
        with closing(self._claimed()) as parts:
            for mine, busy in parts:
                if mine:
                    goes_on = execute(mine)
                elif wait is not None:
                    goes_on = wait(busy)
                else:
                    goes_on = True
                    time.sleep(INTERVAL)
                if not goes_on:
                    return

    def request(self, point: Point) -> None:
        """Request a run that this process has claimed: it is reopened when it begins, and so stays done until then.

        A damaged run that is marked as done starts from the beginning.

        Raises:
            RunError: its folder cannot be written.
        """
        directory = directory_of(point, self._results)
        restarts = not self._resume or (directory.path / "DONE").exists() or directory.restarts
        try:
            directory.request_restart(restarts=restarts)
        except OSError as error:
            raise RunError(f"{directory.path} cannot run again: {error.filename}: {error.strerror}") from error

    def _claimed(self) -> Generator[tuple[list[Point], list[Point]]]:
        """Yield points that this process claims until the next step, and those that others execute, until none is left.

        No points are claimed while the caller is to wait for `INTERVAL`, so that no two processes wait for each other.
        """
        left = self.left
        while left:
            with ExitStack() as claims:
                mine, left = self._claim(left, claims)
                if mine:
                    yield mine, left
            if left:
                yield [], left

    def _claim(self, points: Sequence[Point], claims: ExitStack) -> tuple[list[Point], list[Point]]:
        mine: list[Point] = []
        busy: list[Point] = []
        for point in points:
            if self._is_done(point):  # finished by another process in the meantime
                continue
            lock = directory_of(point, self._results).claim()
            if lock is None:
                busy.append(point)
                continue
            claims.enter_context(lock)
            self._withdraw(point)
            if not self._is_done(point):  # it may have finished before the claim
                mine.append(point)
        return mine, busy

    def _is_done(self, point: Point) -> bool:
        return self._resume and is_done(point, self._results)

    def _withdraw(self, point: Point) -> None:
        """Withdraw the request of an earlier `--no-resume` that ended before the run began; a successor keeps it."""
        if self._resume and not predecessors():
            with suppress(OSError):  # it is not writable: `request` reports it
                directory_of(point, self._results).request_restart(restarts=False)
