"""Runs of a single step, and runs that end within their first round, end by themselves and evaluate their model."""

from pathlib import Path

import pytest
from small_experiment import small_experiment

import hpcps
from hpcps.records.files import read_lines
from hpcps.records.run_directory import RunDirectory

pytestmark = pytest.mark.usefixtures("starts_processes")

COLLECTIVE = {"topology.servers": 0, "topology.validators": 0}
KINDS = {
    "validators": {},
    "servers": {"topology.validators": 0},
    "asynchronous": {"train.mode": "async", "validation.rule.kind": "naive_async"},
    "ring": {**COLLECTIVE, "train.exchange": "ring"},
    "alone": {"topology.workers": 0, "topology.servers": 0, "data.shards": 1, "data.limit": 16},
    "evaluator": {"topology.evaluators": 1},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("steps", [1, 50])
def test_a_run_of_one_batch_ends(tmp_path: Path, kind: str, steps: int) -> None:
    """A role that waits for a message that never comes would be a deadlock, which is an error in one process."""
    keys = {"train.epochs": 1, "train.batch_size": 16, "data.limit": 16 * 3, "train.local_steps": steps}
    experiment = hpcps.run(small_experiment("short", keys | KINDS[kind]), results=tmp_path, progress=False)
    directory = RunDirectory(tmp_path / "short/runs" / experiment.ids[0])
    assert directory.done
    lines = [line for file in directory.records for line in read_lines(file).lines]
    assert [line["epoch"] for line in lines if line["event"] == "evaluation"] == [1]
    assert sum(line.get("samples") or 0 for line in lines if line["event"] == "round") >= 16
