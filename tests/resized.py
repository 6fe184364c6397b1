"""Runs in one process that are resized, interrupted at any step, and executed again until they are done."""

from contextlib import suppress
from pathlib import Path

import pytest
from interrupted import Crash

from hpcps.execution import role_driver
from hpcps.execution.replay.replayed_run import replay
from hpcps.execution.sweep.batch import execute_point
from hpcps.execution.sweep.claims import directory_of
from hpcps.execution.sweep.resizing import as_requested
from hpcps.execution.tracking import TrackingProcess
from hpcps.spec.identity import run_id
from hpcps.spec.point import Point
from hpcps.spec.schema import Run


def resize(run, results, workers, crashes=()):
    """Execute a run to its end; return its folder.

    Each attempt that begins with a number of workers of its own requests the next number. Its process is gone after
    each of so many steps.
    """
    point, wanted, crashes = Point(0, run, run_id(run), "small"), list(workers), list(crashes)
    directory, take, steps = directory_of(point, Path(results)), role_driver.RoleDriver.take, 0
    said, done = [], False

    def counted(self):
        nonlocal steps
        steps += 1
        if crashes and steps == crashes[0]:
            crashes.pop(0)
            steps = 0
            raise Crash
        return take(self)

    with pytest.MonkeyPatch.context() as patch, TrackingProcess() as tracking:
        patch.setattr(role_driver.RoleDriver, "take", counted)
        patch.setattr(role_driver, "_ASK_EVERY", -1.0)
        while not done:
            resized = as_requested(point, Path(results), said.append)
            if wanted and (resized.members != point.members or directory.resize_requested is None):
                directory.path.mkdir(parents=True, exist_ok=True)
                directory.request_resize(wanted.pop(0))
            point = resized
            with suppress(Crash):
                done = execute_point(point, Path(results), [], lambda: False, tracking)
    assert not any("stays" in each for each in said), said
    return directory


def replay_resized(directory, folder):
    """Replay a run; return the result."""
    return replay(directory, Run.model_validate(directory.spec["run"]), Path(folder), lambda text: None)
