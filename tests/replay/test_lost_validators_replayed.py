"""Runs in virtual time that lose validators, and workers beside them, are replayed to the same bits."""

import pytest
from executed import run_here
from recorded import replayed
from survive.test_lost_validators import random_run, run_of


@pytest.mark.parametrize("seconds", [0.2, 0.3, 0.4])
def test_an_evaluation_that_ends_between_two_messages_is_replayed(seconds, tmp_path):
    """The servers hear of it before the combined update of a round, or after it."""
    latency = {"latency": 0.1}
    costs = {"evaluate": seconds, "step": {"kind": "uniform", "low": 0.01, "high": 0.1}}
    run = run_of(validators=1, simulation={**costs, "local": latency, "remote": latency})
    directory = run_here(run, tmp_path / "run")
    result, _ = replayed(directory, tmp_path / "replay")
    assert result.difference is None, result.difference


@pytest.mark.sample(1, 6)
@pytest.mark.parametrize("quorum", [{}, {"quorum": 0.5}], ids=["all", "quorum"])
@pytest.mark.parametrize(
    "seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(3, 10))]
)
def test_a_run_is_replayed(seed, quorum, tmp_path):
    directory = run_here(random_run(seed, workers=6, train={"epochs": 2, **quorum}), tmp_path / "run")
    result, _ = replayed(directory, tmp_path / "replay")
    assert result.difference is None, result.difference
    assert result.models == len(list(directory.path.glob("final/*.npy")))
    assert not result.left
