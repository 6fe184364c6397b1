"""`checkpoint.rounds`: checkpoints within an epoch, in each mode."""

import pytest
from executed import lines, run_here
from interrupted import play, small

from hpcps.records.checkpoint import Checkpoints

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


@pytest.fixture
def seals(monkeypatch):
    """Return the positions of the checkpoints that are completed, and whether each must survive a power failure."""
    found, seal = {}, Checkpoints.seal

    def sealed(self, position, *rest, lasting):
        found[position] = lasting
        seal(self, position, *rest, lasting=lasting)

    monkeypatch.setattr(Checkpoints, "seal", sealed)
    return found


ALONE = small(
    topology={"servers": 0, "validators": 1, "workers": 0},
    data={"name": "digits", "limit": 480, "test_limit": 60, "shards": 3},
    **ROUNDS,
)


@pytest.mark.sample(2)
@pytest.mark.parametrize("case", [*CASES, "alone"])
def test_those_of_an_epoch_must_last(case, seals, tmp_path):
    run = CASES[case][0] if case in CASES else ALONE
    every = run.model_copy(update={"checkpoint": run.checkpoint.model_copy(update={"every": 1, "rounds": 0})})
    run_here(every, tmp_path / "every")
    assert all(seals.values())
    epochs = dict(seals)
    seals.clear()
    both = run.model_copy(update={"checkpoint": run.checkpoint.model_copy(update={"every": 1, "rounds": 1})})
    run_here(both, tmp_path / "both")
    lasting = [position for position, lasts in seals.items() if lasts]
    # One may have been under way where an epoch ended: then the next one counts.
    assert len(lasting) == len(epochs) < len(seals)
    if case != "asynchronous":
        assert all(0 <= there - wanted <= 1 for there, wanted in zip(lasting, epochs, strict=True))


@pytest.mark.sample(2)
@pytest.mark.parametrize("case", [*CASES, "alone"])
def test_the_one_at_a_stop_must_last(case, seals, tmp_path):
    run = CASES[case][0] if case in CASES else ALONE
    assert not play(run, tmp_path / "run", stop=lambda: len(seals) > 1)
    assert list(seals.values()) == [False] * (len(seals) - 1) + [True]
