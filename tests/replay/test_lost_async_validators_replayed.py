"""Asynchronous runs in virtual time that lose validators, and workers beside them, are replayed to the same bits."""

import pytest
from executed import run_here
from recorded import replayed
from survive.test_lost_async_validators import random_run


@pytest.mark.sample(1, 3)
@pytest.mark.parametrize(
    "seed",
    [
        *range(3),
        *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(3, 8)),
        *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(8, 100)),
    ],
)
def test_a_run_is_replayed(seed, tmp_path):
    directory = run_here(random_run(seed, train={"epochs": 2}), tmp_path / "run")
    result, _ = replayed(directory, tmp_path / "replay")
    assert result.difference is None, result.difference
    assert result.models == len(list(directory.path.glob("final/*.npy")))
    assert not result.left
