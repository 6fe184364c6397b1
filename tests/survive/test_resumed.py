"""Runs that lose workers, crash, and go on from a checkpoint."""

import pytest
from interrupted import model, play, play_through
from survive.test_lost_workers import survivors

from hpcps.records.files import read_lines
from hpcps.seeds import generator


def valid(folder, process, event):
    lines, _ = read_lines(folder / "records" / f"{process}.jsonl").valid()
    return [line for line in lines if line["event"] == event]


@pytest.mark.parametrize(("validators", "servers"), [(0, 1), (0, 2), (2, 1)])
def test_stopped_at_a_checkpoint(validators, servers, tmp_path):
    """Without a loss the model is that of a run that was not stopped."""
    run = survivors(validators=validators, servers=servers, checkpoint={"every": 1})
    assert play(run, tmp_path / "whole")
    assert not play(run, tmp_path / "stopped", stop=lambda: True)
    assert play(run, tmp_path / "stopped")
    assert model(tmp_path / "stopped").tobytes() == model(tmp_path / "whole").tobytes()


@pytest.mark.parametrize("seed", range(6))
def test_crashes_and_losses(seed, tmp_path):
    """Each worker goes on after its last update that was combined, also if that was before the checkpoint."""
    draw = generator(seed, "worker", 1, "crashes")
    validators, servers = ((0, 1), (0, 2), (2, 1))[seed % 3]
    run = survivors({"every": 1.5, "repair": 0.1}, validators=validators, servers=servers, checkpoint={"every": 1})
    run = run.model_copy(update={"seed": seed})
    crashes = [int(draw.integers(200, 900)) for _ in range(3)]
    play_through(run, tmp_path, crashes)
    for worker in range(4):
        combiner = f"validator-{worker % validators}" if validators else "server-0"
        rounds = valid(tmp_path, combiner, "round")
        assert [line["round"] for line in rounds] == list(range(len(rounds)))
        arrived = [line["round"] for line in rounds if worker in line["arrived"]]
        steps = {line["round"]: line["step"] for line in valid(tmp_path, f"worker-{worker}", "round")}
        wrong = [r for n, r in enumerate(arrived) if r in steps and steps[r] != 2 * (n + 1)]
        assert not wrong, (worker, arrived, steps)
