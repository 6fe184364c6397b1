"""Runs in virtual time that lose the evaluator, and others beside it, are replayed to the same bits."""

import pytest
from executed import run_here
from recorded import replayed
from survive.test_lost_evaluator import ONE, RANDOM, also_losing_the_evaluator


@pytest.mark.sample(1, 3)
@pytest.mark.parametrize("mode", RANDOM)
@pytest.mark.parametrize(
    "seed",
    [
        *range(2),
        *(pytest.param(seed, marks=pytest.mark.thorough) for seed in range(2, 6)),
        *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(6, 60)),
    ],
)
def test_a_run_is_replayed(mode, seed, tmp_path):
    run = also_losing_the_evaluator(RANDOM[mode](seed, topology=ONE), seed)
    directory = run_here(run, tmp_path / "run")
    result, _ = replayed(directory, tmp_path / "replay")
    assert result.difference is None, result.difference
    assert result.models == len(list(directory.path.glob("final/*.npy")))
    assert not result.left
