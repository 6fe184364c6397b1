"""Runs in one process that are interrupted at any step, and played again until they are done."""

import json
from pathlib import Path

import numpy as np
import pytest
from installed import BACKEND

from hpcps.execution import role_driver
from hpcps.execution.inprocess import run_in_process
from hpcps.records.run_directory import RunDirectory
from hpcps.spec.schema import Run


class Crash(BaseException):
    """The process is gone."""


def small(**tables):
    """Return a small run; `tables` change it."""
    run = {
        "name": "small",
        "topology": {"workers": 3},
        "model": {"name": "mlp", "backend": BACKEND},
        "data": {"name": "digits", "limit": 480, "test_limit": 60},
        "train": {"epochs": 6, "batch_size": 16, "local_steps": 3, "optimizer": {"lr": 0.05}},
        "communication": {"participation": 0.7, "skip_rate": 0.3},
        "checkpoint": {"every": 1},
    }
    for table, values in tables.items():
        run[table] = values if table in ("seed", "fidelity") else {**run.get(table, {}), **values}
    return Run.model_validate(run)


def play(run, folder, crash_at=None, stop=lambda: False, crash_when=lambda: False, name="small"):
    """Play a run; return whether it is done.

    Its process is gone at the step `crash_at`, or at the first one at which `crash_when` returns true. The run's id is
    `name`.
    """
    directory = RunDirectory(folder)
    directory.create({"run_id": name, "run": run.model_dump(mode="json")})
    step, steps = role_driver.RoleDriver.take, 0

    def counted(self):
        nonlocal steps
        steps += 1
        if steps == crash_at or crash_when():
            raise Crash
        return step(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(role_driver.RoleDriver, "take", counted)
        patch.setattr(role_driver, "_ASK_EVERY", -1.0)
        try:
            return run_in_process(run.identified(name), directory, stop)
        except Crash:
            return False


def play_through(run, folder, crashes):
    """Play a run until it is done, with a crash after each of so many steps."""
    for crash_at in crashes:
        if play(run, folder, crash_at):
            return
    assert play(run, folder)


def model(folder):
    return np.concatenate([np.load(path) for path in sorted(Path(folder, "final").glob("*.npy"))])


def records(folder, process):
    return [json.loads(line) for line in Path(folder, "records", f"{process}.jsonl").read_text().splitlines()]
