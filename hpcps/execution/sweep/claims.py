"""Which runs of a sweep are left for this process, and whether they can be executed here."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from hpcps.errors import RunError
from hpcps.launch.prepare import run_folder
from hpcps.records.run_directory import RunDirectory
from hpcps.spec.load import Point


def directory_of(point: Point, results: Path) -> RunDirectory:
    """Return the folder of a point's run."""
    return RunDirectory(run_folder(point, results))


def is_done(point: Point, results: Path) -> bool:
    """Tell whether a point's run has finished and all its files are there."""
    try:
        return directory_of(point, results).done
    except OSError:  # for example not readable: `check_ready` reports the reason
        return False


def missing_files(point: Point, results: Path) -> tuple[str, ...]:
    """Return the missing files of a run that is marked as done."""
    try:
        return directory_of(point, results).missing
    except OSError:  # see `is_done`
        return ()


def claim(
    points: Sequence[Point], results: Path, claims: ExitStack, *, resume: bool
) -> tuple[list[Point], list[Point]]:
    """Return the points that this process has claimed, while `claims` is open, and those that others execute.

    Args:
        points: the points to claim.
        results: the folder of all results.
        claims: holds the claims.
        resume: whether to leave out runs that are done.
    """
    mine, busy = [], []
    for point in points:
        if resume and is_done(point, results):  # finished by another process in the meantime
            continue
        lock = directory_of(point, results).claim()
        if lock is None:
            busy.append(point)
            continue
        claims.enter_context(lock)
        # It may have finished before the claim.
        if not (resume and is_done(point, results)):
            mine.append(point)
    return mine, busy


def forget(point: Point, results: Path, *, resume: bool) -> None:
    """Remove the DONE of a run, so that it does not survive a failure, and its checkpoints unless it shall resume."""
    directory = directory_of(point, results)
    try:
        (directory.path / "DONE").unlink(missing_ok=True)
        if not resume:
            directory.checkpoints.clear()
    except OSError as error:
        raise RunError(f"{directory.path} cannot run again: its DONE cannot be removed, {error.strerror}") from error


def check_ready(points: Sequence[Point], results: Path, *, framework: bool = True) -> None:
    """Find out before anything is started whether results can be written, data be read, and components be used.

    Args:
        points: the points, at least one.
        results: the folder of all results.
        framework: whether this Python, which the processes also use, must have the framework that trains.

    Raises:
        HpcpsError: the first reason why the points cannot run here.
    """
    from hpcps.execution.sweep.refusals import refusals
    from hpcps.training.trial import try_components

    for error in refusals(points, results.absolute() / points[0].run.name, framework=framework):
        raise error
    try_components(point.run for point in points)
