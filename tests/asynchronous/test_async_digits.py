"""What attacks do to asynchronous training on the digits, with fixed seeds: the behaviour behind Figures 5 and 6."""

import pytest
from executed import lines, run_here

from hpcps.spec.validate import validate

ATTACKS = {
    "none": {"kind": "none"},
    "negative 6": {"kind": "negative", "scale": 6.0, "rate": 0.2},
    "random 1": {"kind": "random", "scale": 1.0, "rate": 0.2},
}


def accuracy(folder, rule, attack):
    run, problems = validate(
        {
            "name": "digits",
            "topology": {"servers": 1, "validators": 1, "workers": 8},
            "model": {"name": "mlp"},
            "data": {"name": "digits"},
            "train": {
                "mode": "async",
                "epochs": 12,
                "batch_size": 16,
                "local_steps": 4,
                "optimizer": {"lr": 0.1},
                "lr_decay": {"epochs": [6, 9]},
                "lr_scale": "sqrt_workers",
            },
            "asynchronous": {
                "proximal": {"worker": 0.2, "validator": 0.2},
                "alpha_decay": {"epochs": [6, 9]},
            },
            "communication": {"skip_rate": 0.2},
            "validation": {"rule": {"kind": rule}},
            "attack": ATTACKS[attack],
        }
    )
    assert run is not None, problems
    run_here(run, folder)
    return 100 * lines(folder, "validator-0", "evaluation")[-1]["accuracy"]


@pytest.fixture(scope="module")
def unattacked(tmp_path_factory):
    return accuracy(tmp_path_factory.mktemp("none"), "zeno++", "none")


@pytest.mark.thorough
def test_training_succeeds_without_an_attack(tmp_path, unattacked):
    assert unattacked > 85
    assert accuracy(tmp_path, "naive_async", "none") > 80


@pytest.mark.thorough
def test_zeno_plus_plus_holds_where_naive_async_falls(tmp_path, unattacked):
    assert accuracy(tmp_path / "naive", "naive_async", "negative 6") <= 30
    assert accuracy(tmp_path / "zeno", "zeno++", "negative 6") >= unattacked - 3
