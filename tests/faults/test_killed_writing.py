"""A sweep that is killed at any of its file operations loses no finished run, and goes on."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_experiment import small_experiment

from hpcps.cli.main import main
from hpcps.records.run_directory import RunDirectory
from hpcps.training.pytorch import trainer  # loaded here, so that no child has to

pytestmark = pytest.mark.usefixtures("starts_processes")

SWEEP = small_experiment(
    "sweep",
    {"topology.validators": 0, "topology.workers": 1, "data.limit": 64, "train.epochs": 4, "checkpoint.every": 2},
    "[[sweep]]\nseed = [1, 2]\n",
)
OPERATIONS = ("replace", "rename", "fsync", "write", "unlink", "rmdir", "mkdir")
STRIDE = 11
"""Every so many-th operation is tried."""


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    file = tmp_path / "sweep.toml"
    file.write_text(SWEEP)
    return file


def in_a_child(work: Callable[[], int]) -> int:
    """Do something in a copy of this process; return its exit status."""
    child = os.fork()
    if not child:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            os._exit(work())
        finally:
            os._exit(99)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def dying(name: str, operation: Callable[..., Any], left: list[int], dead: Callable[[int], None]) -> Callable[..., Any]:
    """Wrap a file operation so that the process dies in it once it is the last one left."""

    def wrapped(*arguments: Any, **options: Any) -> Any:
        left[0] -= 1
        if left[0] == 0:
            if name == "write":  # torn
                operation(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
            dead(77)
        return operation(*arguments, **options)

    return wrapped


def play(sweep: Path, results: Path, die_at: int = 0) -> int:
    """Run the sweep in a child that dies in its operation number `die_at`; return its exit status."""

    def work() -> int:
        left, dead = [die_at], os._exit
        for name in OPERATIONS:
            setattr(os, name, dying(name, getattr(os, name), left, dead))
        status = main(["run", str(sweep), "--results", str(results)])
        # How many there are in all, for the first look.
        (results / "operations").write_text(str(-left[0]))
        return status

    return in_a_child(work)


def finals(results: Path) -> dict[str, np.ndarray]:
    found = {}
    for path in sorted((results / "sweep" / "runs").iterdir()):
        if RunDirectory(path).done:
            found[path.name] = np.load(path / "final" / "server-0.npy")
    return found


def test_whatever_it_was_writing(sweep: Path, tmp_path: Path) -> None:
    assert trainer
    assert play(sweep, tmp_path / "whole") == 0
    wanted = finals(tmp_path / "whole")
    assert len(wanted) == 2
    operations = int((tmp_path / "whole" / "operations").read_text())
    assert operations > 60
    kept = 0
    for number in range(1, operations, STRIDE):
        results = tmp_path / f"died-{number}"
        assert play(sweep, results, number) == 77, number
        before = {path: path.stat().st_mtime_ns for path in results.glob("sweep/runs/*/DONE")}
        for path in before:
            # What is done is whole.
            assert np.array_equal(np.load(path.parent / "final/server-0.npy"), wanted[path.parent.name])
        kept += len(before)
        assert play(sweep, results) == 0, number
        got = finals(results)
        assert got.keys() == wanted.keys()
        assert all(np.array_equal(got[run], wanted[run]) for run in wanted), number
        assert all(path.stat().st_mtime_ns == moment for path, moment in before.items()), "it was played again"
    assert kept > 3
