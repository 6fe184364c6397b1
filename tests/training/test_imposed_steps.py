"""Imposed step times: over MPI, and in virtual time."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from simulated import constant, simulate, spec
from small_experiment import small_experiment

from hpcps.records.collect import collect

KEYS = {
    "topology.validators": 0,
    "data.limit": 64,
    "data.test_limit": 20,
    "data.shards": 2,
    "train.mode": "async",
    "train.epochs": 8,  # of 2 steps, of worker 0
    "train.batch_size": 16,
    "validation.rule.kind": "naive_async",
}
CLASSES = """
[[heterogeneity.classes]]
name = "fast"
workers = [0]
seconds = 0.15

[[heterogeneity.classes]]
name = "slow"
workers = [1]
seconds = 0.6
"""

TRANSPORTS = {
    "over mpi": ["transport.kind=mpi"],  # pytest-mpi skips tests whose id is only mpi
    "simulated": ["transport.kind=inproc", "simulation={kind='modelled'}"],
}


def rounds_of(folder: Path, *settings: str) -> Any:
    (folder / "imposed.toml").write_text(small_experiment("imposed", KEYS, CLASSES))
    command = [sys.executable, "-m", "hpcps", "run", "imposed.toml", "--results", folder]
    command += [word for each in settings for word in ("--set", each)]
    subprocess.run(command, cwd=folder, check=True, timeout=240)
    table = collect(folder / "imposed").table
    return table[(table["role"] == "worker") & table["event"].isin(["round", "totals"])]


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_step_ends_no_sooner_than_imposed(transport: str, tmp_path: Path) -> None:
    rows = rounds_of(tmp_path, *TRANSPORTS[transport])
    rounds = rows[rows["event"] == "round"]
    fast, slow = ((rounds["index"] == worker).sum() for worker in (0, 1))
    assert fast == 16
    assert 3 <= slow <= 5
    totals = rows[rows["event"] == "totals"].set_index("index")
    assert (totals["overrun_steps"] <= 2).all(), "the first step of a process may take longer"
    error = {} if transport == "simulated" else {"rel": 0.3}
    assert totals["step_seconds"].tolist() == pytest.approx([0.15, 0.6], **error)


@pytest.mark.parametrize("computing", [0.0, 0.25, 0.5])
def test_the_record_counts_the_steps_that_took_longer(computing: float, tmp_path: Path) -> None:
    classes = [{"name": "short", "workers": [0], "seconds": 0.2}, {"name": "long", "workers": [1], "seconds": 0.4}]
    run = spec(
        {"step": constant(computing)},
        train={"epochs": 6, "local_steps": {"kind": "esync", "most": 4}},
        heterogeneity={"classes": classes},
    )
    played = simulate(tmp_path, run)
    for worker, imposed in (("worker-0", 0.2), ("worker-1", 0.4)):
        rounds = played.lines(worker, "round")
        assert [line["step_seconds"] for line in rounds] == pytest.approx([max(computing, imposed)] * len(rounds))
        longer = computing > imposed
        assert [line["overrun_steps"] for line in rounds] == [line["local_steps"] * longer for line in rounds]
