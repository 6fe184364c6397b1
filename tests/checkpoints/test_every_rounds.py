"""`checkpoint.rounds`: checkpoints within an epoch, in each mode."""

import pytest
from executed import lines, run_here
from interrupted import small

ROUNDS = {"checkpoint": {"every": 0, "rounds": 4}}
CASES = {
    "servers": (small(topology={"servers": 2, "validators": 1}, **ROUNDS), "server-0"),
    "no-validators": (small(topology={"servers": 1, "validators": 0}, **ROUNDS), "server-0"),
    "ring": (
        small(topology={"servers": 0, "validators": 0, "workers": 3}, train={"exchange": "ring"}, **ROUNDS),
        "worker-0",
    ),
    "asynchronous": (
        small(train={"mode": "async", "epochs": 3}, validation={"rule": {"kind": "naive_async"}}, **ROUNDS),
        "server-0",
    ),
}


@pytest.mark.sample(2)
@pytest.mark.parametrize("case", CASES)
def test_one_is_written_each_time(case, tmp_path):
    run, keeper = CASES[case]
    directory = run_here(run, tmp_path / "run")
    found = [line["moment"] for line in lines(directory.path, keeper, "checkpoint")]
    assert len(found) >= 2
    if case == "asynchronous":  # the entry of the checkpoint itself comes after the one that makes it due
        assert all((moment - 1) % 4 == 0 for moment in found)
    else:
        assert found == [4 * (n + 1) for n in range(len(found))]
        assert lines(directory.path, keeper, "round")[-1]["round"] - found[-1] <= 4


def test_without_servers_a_checkpoint_is_at_the_end_of_a_round_also_where_an_epoch_ends(tmp_path):
    """10 batches an epoch, rounds of 5 steps: every second round ends an epoch, and none of them is left out."""
    alone = small(
        topology={"servers": 0, "validators": 1, "workers": 0},
        data={"name": "digits", "limit": 480, "test_limit": 60, "shards": 3},
        train={"epochs": 6, "batch_size": 16, "local_steps": 5},
        checkpoint={"every": 0, "rounds": 2},
    )
    directory = run_here(alone, tmp_path / "run")
    found = [line["moment"] for line in lines(directory.path, "validator-0", "checkpoint")]
    assert found == [10, 20, 30, 40, 50]
