"""Workers with a batch size of their own: their steps, their epochs and their learning rates, in both modes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from executed import run_here

from hpcps.records.collect import collect
from hpcps.spec.schema import Run

Tree = dict[str, Any]


def run_of(*classes: Tree, **tables: Tree) -> Run:
    content: Tree = {
        "name": "classes",
        "topology": {"validators": 0, "workers": 3},
        "transport": {"kind": "inproc"},
        "model": {"name": "mlp"},
        "data": {"name": "digits", "limit": 192, "test_limit": 20, "shards": 3},
        "train": {"epochs": 2, "batch_size": 16, "optimizer": {"name": "sgd", "lr": 0.1}},
        "heterogeneity": {"classes": list(classes)},
    }
    for table, values in tables.items():
        content[table] = {**content.get(table, {}), **values}
    return Run.model_validate(content)


def played(run: Run, folder: Path) -> tuple[Any, np.ndarray]:
    directory = run_here(run, folder / "runs/it")
    return collect(folder).table, directory.final_model()


def rounds(table: Any, worker: int) -> Any:
    return table[(table["event"] == "round") & (table["role"] == "worker") & (table["index"] == worker)]


def test_a_class_of_all_workers_is_the_batch_size_of_the_run(tmp_path: Path) -> None:
    whole = played(run_of(train={"batch_size": 8, "lr_decay": {"epochs": [1]}}), tmp_path / "whole")[1]
    every = {"name": "all", "workers": 3, "batch_size": 8}
    classes = played(run_of(every, train={"lr_decay": {"epochs": [1]}}), tmp_path / "classes")[1]
    assert whole.tobytes() == classes.tobytes()


@pytest.fixture(params=["sync", "async"])
def mode(request: pytest.FixtureRequest) -> Tree:
    rule = {"kind": "average"} if request.param == "sync" else {"kind": "naive_async"}
    return {"train": {"mode": request.param}, "validation": {"rule": rule}}


def test_steps_and_epochs_of_workers_with_other_batches(mode: Tree, tmp_path: Path) -> None:
    small = {"name": "small", "workers": [1], "batch_size": 8}
    large = {"name": "large", "workers": [2], "batch_size": 64}
    table, _ = played(run_of(small, large, **mode), tmp_path)
    assert [set(rounds(table, worker)["samples"]) for worker in range(3)] == [{16}, {8}, {64}]
    starts = table[(table["event"] == "start") & (table["role"] == "worker")]
    named = {int(line["index"]): line["class"] for _, line in starts.iterrows() if isinstance(line["class"], str)}
    assert named == {1: "small", 2: "large"}
    # Shards have 64 samples: an epoch of the coordinator is 4 steps.
    epochs = [rounds(table, worker).iloc[0]["epoch"] for worker in range(3)]
    assert epochs == ([1 / 4] * 3 if mode["train"]["mode"] == "sync" else [1 / 4, 1 / 8, 1.0])
    assert rounds(table, 0)["step"].max() == 8
    evaluations = table[table["event"] == "evaluation"]
    assert evaluations["epoch"].tolist() == [1, 2]
