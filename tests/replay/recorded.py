"""Asynchronous runs in one process whose roles take turns by chance, as on a cluster, and replays of them."""

import json
import random
from contextlib import suppress
from pathlib import Path

import pytest
from installed import BACKEND

from hpcps.execution import inprocess, role_driver
from hpcps.execution.inprocess import run_in_process
from hpcps.execution.replay.replayed_run import replay
from hpcps.records.run_directory import RunDirectory
from hpcps.spec.identity import revisions, run_id
from hpcps.spec.schema import Run


class Crash(BaseException):
    """The process is gone."""


def asynchronous(shape=(2, 2, 4), epochs=3, **tables):
    """Return a small asynchronous run; `tables` change it."""
    servers, validators, workers = shape
    run = {
        "name": "small",
        "topology": {"servers": servers, "validators": validators, "workers": workers},
        "model": {"name": "mlp", "backend": BACKEND},
        "data": {"name": "digits", "limit": 240, "test_limit": 60},
        "train": {"mode": "async", "epochs": epochs, "batch_size": 16, "local_steps": 1, "optimizer": {"lr": 0.05}},
        "validation": {"rule": {"kind": "naive_async"}},
        "communication": {"participation": 0.8, "skip_rate": 0.3},
        "checkpoint": {"every": 1},
    }
    for table, values in tables.items():
        run[table] = {**run.get(table, {}), **values}
    return Run.model_validate(run)


def quorum(shape=(2, 1, 4), **tables):
    """Return a small synchronous run whose rounds close with three updates; `tables` change it."""
    train = {"mode": "sync", "epochs": 8, "local_steps": 2, "quorum": 3, **tables.pop("train", {})}
    rule = {"rule": {"kind": "average"}}
    return asynchronous(shape, **{"train": train, "validation": rule, "communication": {"skip_rate": 0.3}, **tables})


def play(run, folder, seed, crash=lambda directory: False, stop=lambda: False):
    """Play a run whose roles take turns by chance; return its folder. Its process is gone once `crash` says so."""
    directory = RunDirectory(Path(folder) / "0123456789")
    settings = {"run_id": run_id(run), "revisions": revisions(run), "run": run.model_dump(mode="json")}
    directory.create({"label": "small", **settings})
    chance = random.Random(seed)

    def take_turns(drivers, directory, clock):
        idle = 0
        while left := [driver for driver in drivers if not driver.finished]:
            if crash(directory):
                raise Crash
            # A chosen role often goes on for a while, so that messages wait for the others.
            driver = chance.choice(left)
            moved = [driver.step() for _ in range(chance.choice((1, 1, 2, 8))) if not driver.finished]
            idle = 0 if any(moved) else idle + 1
            if idle > 20 * len(left):
                clock.advance(min(driver.resumes for driver in left if driver.resumes is not None))
                idle = 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inprocess, "take_turns", take_turns)
        patch.setattr(role_driver, "_ASK_EVERY", -1.0)
        with suppress(Crash):
            run_in_process(run.identified(run_id(run)), directory, stop)
    return directory


def replayed(directory, folder):
    """Replay a run; return the result and the differences of the environment."""
    differences = []
    run = Run.model_validate(directory.spec["run"])
    return replay(directory, run, Path(folder), differences.append), differences


def lines(directory, process):
    """Return the lines of a record."""
    return [json.loads(line) for line in record(directory, process).read_text().splitlines()]


def record(directory, process):
    """Return the file of a record."""
    return directory.path / "records" / f"{process}.jsonl"
