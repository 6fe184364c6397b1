"""Which runs of a sweep are left for this process, and whether they can be executed here."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

from hpcps.errors import HpcpsError, RunError
from hpcps.launch.batch import predecessors
from hpcps.records.inventory import UNDAMAGED, Damage
from hpcps.records.locate import run_folder
from hpcps.records.run_directory import RunDirectory
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
    except OSError:  # for example not readable: `check_ready` reports the reason
        return False


def damage_of(point: Point, results: Path) -> Damage:
    """Return which files of a point's run are missing or have changed."""
    try:
        return directory_of(point, results).damage(contents=True)
    except OSError:  # see `is_done`
        return UNDAMAGED


INTERVAL = 0.5
"""Seconds to wait before runs that another process executes are claimed again."""


def claimed(points: Sequence[Point], results: Path, *, resume: bool) -> Generator[tuple[list[Point], list[Point]]]:
    """Yield points that this process claims until the next step, and those that others execute, until none is left.

    No points are claimed while the caller is to wait for `INTERVAL`, so that no two processes wait for each other.
    Close the generator if it is not used to its end.

    Args:
        points: the points to claim.
        results: the folder of all results.
        resume: whether to leave out runs that are done.
    """
    left: Sequence[Point] = points
    while left:
        with ExitStack() as claims:
            mine, left = _claim(left, results, claims, resume=resume)
            if mine:
                yield mine, left
        if left:
            yield [], left


def _claim(
    points: Sequence[Point], results: Path, claims: ExitStack, *, resume: bool
) -> tuple[list[Point], list[Point]]:
    mine: list[Point] = []
    busy: list[Point] = []
    for point in points:
        if resume and is_done(point, results):  # finished by another process in the meantime
            continue
        lock = directory_of(point, results).claim()
        if lock is None:
            busy.append(point)
            continue
        claims.enter_context(lock)
        if resume:
            _withdraw(point, results)
        # It may have finished before the claim.
        if not (resume and is_done(point, results)):
            mine.append(point)
    return mine, busy


def request(point: Point, results: Path, *, resume: bool) -> None:
    """Request a run that this process has claimed: it is reopened when it begins, and so stays done until then.

    Args:
        point: the run.
        results: the folder of all results.
        resume: whether it resumes from a checkpoint. A damaged run that is marked as done starts from the beginning.

    Raises:
        RunError: its folder cannot be written.
    """
    directory = directory_of(point, results)
    try:
        directory.request_restart(restarts=not resume or (directory.path / "DONE").exists() or directory.restarts)
    except OSError as error:
        raise RunError(f"{directory.path} cannot run again: {error.filename}: {error.strerror}") from error


def _withdraw(point: Point, results: Path) -> None:
    """Withdraw the request of an earlier `--no-resume` that ended before the run began; a job's successor keeps it."""
    if not predecessors():
        with suppress(OSError):  # it is not writable: `request` reports it
            directory_of(point, results).request_restart(restarts=False)


def check_ready(points: Sequence[Point], results: Path, *, framework: bool = True) -> None:
    """Find out before anything is started whether results can be written, data be read, and components be used.

    Args:
        points: the points, at least one.
        results: the folder of all results.
        framework: whether this Python, which the processes also use, must have the framework that trains.

    Raises:
        HpcpsError: the first reason why the points cannot run here.
    """
    for error in refusals(points, results.absolute() / points[0].run.name, framework=framework):
        raise error
    try_components(point.run for point in points)
