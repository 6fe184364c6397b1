"""Invariants under stress, in process and over real MPI: see `Counter` for what the workers check in every model."""

import os
import shutil
import subprocess
import sys
from collections import Counter as Counts
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from stress import FEW, MANY, stressed, trainer
from toy_trainers import Played, everyone, play

pytestmark = pytest.mark.usefixtures("starts_processes")

DELAY = {"kind": "lognormal", "median": 1.0, "sigma": 1.5}
HERE = Path(__file__).parent
EPOCHS = 300
"""So many that each process takes part, also one that starts late."""


def check(played, run, blocks):
    """Every update was applied exactly once, everywhere at the same place, or rejected with a reason."""
    topology = run.topology
    logs = [played.lines(f"server-{s}", "applied") for s in range(topology.servers)]
    same = ("entry", "version", "kind", "submitter", "number", "reader", "request")
    for log in logs[1:]:
        assert [[line[key] for key in same] for line in log] == [[line[key] for key in same] for line in logs[0]]
    log = logs[0]
    assert [line["entry"] for line in log] == list(range(1, len(log) + 1))
    assert log[-1]["kind"] == "stop"
    changes = [line for line in log if "staleness" in line]
    assert [line["version"] for line in changes] == list(range(1, len(changes) + 1))
    assert all(a["version"] <= b["version"] for a, b in pairwise(log))
    assert all(line["staleness"] >= 0 for line in changes)
    answered = Counts((line["reader"], line["request"]) for line in log if line["kind"] != "checkpoint")
    assert set(answered.values()) == {1}, "an answer each"
    applied = Counts(line["reader"] for line in changes)
    judges = [f"validator-{v}" for v in range(topology.validators)] or ["server-0"]
    rejected = Counts(line["sender"] for judge in judges for line in played.lines(judge, "rejected"))
    for k in range(topology.workers):
        sent = sum(line["participated"] for line in played.lines(f"worker-{k}", "round"))
        handled = sum(line["reader"] == f"worker-{k}" and line["kind"] != "stop" for line in log)
        assert sent - 1 <= handled <= sent, "all but one that was under way at the end"
        # A worker's last update may have been judged and be on its way to servers that have stopped.
        unapplied = handled - applied[f"worker-{k}"] if topology.validators else rejected[f"worker-{k}"]
        assert unapplied <= rejected[f"worker-{k}"] <= unapplied + 1
        assert handled > len(changes) / topology.workers / 4, "starved"
    counts = played.model.reshape(blocks, topology.workers)
    assert (counts == counts[0]).all()
    reasons = {line["reason"] for judge in judges for line in played.lines(judge, "rejected")}
    assert reasons <= {"not finite"}
    return len(changes)


@pytest.mark.sample(1)
@pytest.mark.parametrize("per_refresh", ["share", "queued"])
@pytest.mark.parametrize("shape", [(3, 2, 7), (3, 0, 5)], ids=str)
def test_in_process_with_random_delays(tmp_path, shape, per_refresh):
    run = stressed(*shape, 100, per_refresh, DELAY)
    played = play(tmp_path, run, {peer: trainer(run, peer, FEW) for peer in everyone(run) if peer.role != "server"})
    assert check(played, run, FEW) > 40


def test_over_mpi_with_random_delays(tmp_path):
    shape = 2, 2, 3
    mpirun = Path(sys.executable).with_name("mpirun")
    launcher = str(mpirun) if mpirun.exists() else shutil.which("mpirun")
    if launcher is None:
        pytest.skip("there is no mpirun")
    command = [launcher, "-n", str(sum(shape)), sys.executable, "-m", "mpi4py", str(HERE / "stress.py"), str(tmp_path)]
    command += [*map(str, shape), str(EPOCHS), "queued", str(MANY)]
    environment = {**os.environ, "PYTHONPATH": f"{HERE.parents[1]}:{HERE.parent}"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, env=environment)
    assert done.returncode == 0, done.stderr
    run = stressed(*shape, EPOCHS, "queued", DELAY)
    updates = check(Played(tmp_path, run), run, MANY)
    assert updates > 50  # how many come beside the validators' refreshes depends on the machine
    assert np.isfinite(Played(tmp_path, run).model).all()
