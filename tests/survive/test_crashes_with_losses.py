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


def speeds(**seconds):
    return {"classes": [{"name": name, "workers": [int(name[1:])], "seconds": each} for name, each in seconds.items()]}


def moments(run, folder):
    assert play(run, folder)
    return [line["moment"] for line in valid(folder, "server-0", "checkpoint")]


def test_a_checkpoint_is_given_up_also_if_the_lost_worker_has_written_its_part(tmp_path):
    """Worker 2 has written its part of the checkpoint at 5 after 0.85 s; the others do so at 1 s."""
    tables = {"heterogeneity": speeds(w0=0.1, w1=0.1, w2=0.025, w3=0.1), "simulation": {"step": {"kind": "none"}}}
    run = survivors({"process": "worker-2", "at": [0.9]}, checkpoint={"every": 1}, **tables)
    found = moments(run, tmp_path)
    assert 5 not in found
    assert found[0] in range(6, 10)


def test_no_checkpoint_begins_before_a_validator_says_who_was_lost(tmp_path):
    """Validator 0 closes round 3 at 1.4 s, worker 2 is lost, and the slow worker 3 ends the round at 1.6 s."""
    tables = {"heterogeneity": speeds(w0=0.1, w1=0.1, w2=0.1, w3=0.2), "simulation": {"step": {"kind": "none"}}}
    run = survivors({"process": "worker-2", "at": [1.5]}, validators=2, checkpoint={"every": 1}, **tables)
    found = moments(run, tmp_path)
    assert 5 not in found
    assert found[0] in range(6, 10)
