"""Runs whose workers take the samples of absent ones have rounds of as many samples as before, and are replayed."""

import pytest
from executed import lines, run_here
from replay.test_lost_workers_replayed import assert_equal, costs, play
from survive.test_constant_batches import LOSS, STEPS, UNEVEN, counted, sharing

from hpcps.records.run_directory import RunDirectory

OFTEN = {"process": "worker", "every": 1.5, "noticed": 0.02, "repair": 0.3}
BOTH = {"workers": True, "validators": True}
RUNS = {
    "one server": sharing(OFTEN),
    "three servers": sharing(OFTEN, servers=3, simulation=costs(), checkpoint={"rounds": 2}),
    "a validator": sharing(OFTEN, validators=1, workers=5, heterogeneity=UNEVEN),
    "two validators": sharing({**OFTEN, "every": 4.0}, validators=2, workers=5, servers=2, simulation=costs()),
    "lost validators": sharing(
        *({**OFTEN, "process": process} for process in ("worker", "validator")),
        validators=2, workers=6, survive=BOTH, simulation=costs(), checkpoint={"rounds": 2},
    ),
    "servers with standbys": sharing(
        *({**OFTEN, "process": process} for process in ("worker", "server")), survive={"servers": True}
    ),
    "compression, and blocks left out": sharing(
        OFTEN, communication={"compression": {"kind": "int8"}, "skip_rate": 0.3, "participation": 0.8}
    ),
}  # fmt: skip


@pytest.mark.sample(2, 4)
@pytest.mark.parametrize("name", RUNS)
def test_a_round_has_as_many_samples_as_before_and_is_replayed(name, tmp_path):
    """But for the round in which a worker is lost, and for a validator none of whose workers are there."""
    run = RUNS[name]
    directory = run_here(run, tmp_path / "run")
    if name not in ("lost validators", "compression, and blocks left out"):
        rounds, lost = counted(run, directory.path)
        whole = STEPS * sum(run.batch_size("worker", k) for k in range(run.topology.workers))
        validators = max(run.topology.validators, 1)
        found = {
            sum(samples.values())
            for number, samples in rounds.items()
            if number not in lost and {k % validators for k in samples} == {*range(validators)}
        }
        assert found == {whole}
        assert any(0 < len(samples) < run.topology.workers for number, samples in rounds.items() if number not in lost)
    assert_equal(directory, tmp_path / "replay")


def test_a_run_that_resumes_while_a_worker_is_lost_begins_with_all(tmp_path):
    run = sharing({**LOSS, "at": [0.5], "repair": 3600})
    directory = RunDirectory(tmp_path / "run")
    own = directory.path / "records" / "worker-0.jsonl"
    assert not play(run, directory.path, stop=lambda: '"samples": 22' in own.read_text())
    assert play(run, directory.path)
    resumed = [n for n, line in enumerate(lines(directory.path, "worker-0")) if line["event"] == "start"][1]
    after = [line["samples"] for line in lines(directory.path, "worker-0")[resumed:] if line["event"] == "round"]
    assert after[0] == 16
    assert_equal(directory, tmp_path / "replay")
