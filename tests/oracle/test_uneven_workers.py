"""Where the workers' shards are uneven, `zeno` needs validators that see what the whole set is like."""

import pytest
from executed import lines, run_here

from hpcps.spec.schema import Run


def accuracy(folder, validation_split):
    run = Run.model_validate(
        {
            "name": "uneven",
            "seed": 2,
            "topology": {"workers": 8},
            "model": {"name": "mlp"},
            "data": {"name": "digits", "split": "dirichlet", "alpha": 0.5, "validation_split": validation_split},
            "train": {
                "epochs": 20, "batch_size": 16, "local_steps": 4, "optimizer": {"lr": 0.1},
                "lr_decay": {"epochs": [10, 15]},
            },
            "communication": {"skip_rate": 0.2},
            "validation": {"rule": {"kind": "zeno"}},
        }
    )  # fmt: skip
    run_here(run, folder)
    return lines(folder, "validator-0", "evaluation")[-1]["accuracy"]


@pytest.mark.thorough
@pytest.mark.parametrize(("validation_split", "low", "high"), [("iid", 0.92, 1.0), ("as_workers", 0.0, 0.8)])
def test_validators_of_a_uniform_sample_accept_what_is_right(tmp_path, validation_split, low, high):
    assert low < accuracy(tmp_path, validation_split) < high
