"""On digits, attacks and rules differ by 10 points of accuracy or more where the literature says so."""

import pytest
from executed import lines, run_here

from hpcps.spec.schema import Run

TEN = 0.10
HUGE = 1e6


@pytest.fixture(scope="module")
def accuracy(tmp_path_factory):
    """Return a function that gives the final accuracy of 12 workers, of which 4 are Byzantine; each run is run once."""
    results = tmp_path_factory.mktemp("claims")
    found = {}

    def measure(rule, attack, split="iid"):
        key = repr((rule, attack, split))
        if key not in found:
            run = Run.model_validate(
                {
                    "name": "claims",
                    "topology": {"servers": 1, "workers": 12},
                    "model": {"name": "mlp"},
                    "data": {"name": "digits", "split": split},
                    "train": {
                        "epochs": 6,
                        "batch_size": 16,
                        "local_steps": 2,
                        "optimizer": {"name": "nag", "lr": 0.1},
                    },
                    "validation": {"rule": rule},
                    "attack": {"rate": 0.34, "scope": "worker", **attack} if attack else {"kind": "none"},
                }
            )
            directory = run_here(run, results / str(len(found)))
            found[key] = lines(directory.path, "validator-0", "evaluation")[-1]["accuracy"]
        return found[key]

    return measure


MEAN = {"kind": "mean"}
KRUM = {"kind": "krum", "f": 4}
TRIMMED_MEAN = {"kind": "trimmed_mean", "f": 4}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "attack",
    [
        {"kind": "sign_flip"},
        {"kind": "ipm", "epsilon": 3.0},
        {"kind": "negative", "scale": 6.0},
        {"kind": "gaussian", "scale": 1.0},
        {"kind": "negative", "scale": HUGE},
    ],
    ids=["sign_flip", "ipm", "negative", "gaussian", "huge"],
)
def test_the_mean_falls(accuracy, attack):
    assert accuracy(MEAN, attack) < accuracy(MEAN, None) - TEN


def test_values_that_are_not_finite_do_not_harm_the_mean(accuracy):
    assert accuracy(MEAN, {"kind": "infinite"}) > accuracy(MEAN, None) - TEN


@pytest.mark.thorough
def test_the_mean_of_nearest_neighbours_helps_the_trimmed_mean_on_uneven_data(accuracy):
    alie = {"kind": "alie", "z": 1.5}
    before = {**TRIMMED_MEAN, "before": [{"kind": "nnm"}]}
    uneven = {"kind": "dirichlet", "alpha": 0.1}
    assert accuracy(before, alie, uneven) > accuracy(TRIMMED_MEAN, alie, uneven) + TEN


@pytest.mark.thorough
def test_min_max_harms_krum_more_than_sign_flip(accuracy):
    uneven = {"kind": "dirichlet", "alpha": 1.0}
    assert accuracy(KRUM, {"kind": "min_max"}, uneven) < accuracy(KRUM, {"kind": "sign_flip"}, uneven) - TEN
