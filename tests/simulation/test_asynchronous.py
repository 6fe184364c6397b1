"""Asynchronous runs in virtual time: speed decides who updates, and the same seed gives the same run."""

import statistics
from collections import Counter
from pathlib import Path

import pytest
from simulated import Quadratic, constant, simulate, spec, times

RULE = {"mode": "async", "rule": "naive_async"}
LOGNORMAL = {"kind": "lognormal", "median": 1.0, "sigma": 0.5}


def updates(played):
    return [line for line in played.log if line["kind"] in ("update", "apply")]


@pytest.mark.parametrize("validators", [0, 1])
def test_a_slow_worker_updates_less_often_and_is_staler(tmp_path, validators):
    slow = {"slow": {"workers": [2], "factor": 4.0}}
    run = spec({"step": constant(1.0)}, workers=3, validators=validators, epochs=24, heterogeneity=slow, **RULE)
    log = updates(simulate(tmp_path, run))
    counts = Counter(line["reader"] for line in log)
    assert abs(counts["worker-0"] - counts["worker-1"]) <= 1
    assert counts["worker-0"] == pytest.approx(4 * counts["worker-2"], abs=4)
    stale = {
        worker: statistics.mean(line["staleness"] for line in log if line["reader"] == worker)
        for worker in ("worker-0", "worker-1", "worker-2")
    }
    assert max(stale["worker-0"], stale["worker-1"]) < 2
    assert stale["worker-2"] > 4
    if not validators:
        assert stale["worker-2"] == pytest.approx(8, abs=1), "while it does one cycle the two others do four each"


def test_an_update_is_applied_when_it_comes_and_its_worker_goes_on_at_once(tmp_path):
    slow = {"slow": {"workers": [1], "factor": 2.5}}
    run = spec({"step": constant(1.0), "local": {"latency": 0.125}}, epochs=4, heterogeneity=slow, **RULE)
    log = updates(simulate(tmp_path, run))
    # a cycle: the model, the steps, the update; the first model is there at 0.25
    assert [(line["time"], line["reader"]) for line in log] == [
        (1.375, "worker-0"),
        (2.625, "worker-0"),
        (2.875, "worker-1"),
        (3.875, "worker-0"),
        (5.125, "worker-0"),
    ]
    assert [line["staleness"] for line in log] == [0, 0, 2, 1, 0]


def records(path):
    return {file.name: file.read_bytes() for file in sorted(Path(path, "records").iterdir())}


def random_run(seed):
    costs = {
        "step": LOGNORMAL,
        "cores": 2,
        "hosts": 2,
        "waiting": {"spin": 0.01, "poll": 1e-4, "interval": 1e-3},
        "remote": {"latency": 0.01, "bandwidth": 1e4},
    }
    shape = {"workers": 5, "validators": 2, "servers": 3, "epochs": 12}
    return spec(costs, **shape, **RULE).model_copy(update={"seed": seed})


def test_the_same_seed_gives_the_same_records_to_the_byte(tmp_path):
    for name, seed in (("one", 1), ("same", 1), ("other", 2)):
        simulate(tmp_path / name, random_run(seed))
    assert records(tmp_path / "one") == records(tmp_path / "same")
    logs = [records(tmp_path / name)["server-0.jsonl"] for name in ("one", "other")]
    assert logs[0] != logs[1]


COSTS = {
    "step": constant(1.0),
    "pack": {"element": 0.5},
    "combine": {"element": 0.0625},
    "messages": {"send": 0.25, "receive": 0.125, "byte": 0.001, "record": 0.5},
    "waiting": {"spin": 0.01, "poll": 0.001, "interval": 0.004},
    "local": {"latency": 0.25, "bandwidth": 1000.0},
    "hosts": 2,
}
IPM = {"kind": "ipm", "rate": 0.34}


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_rounds_take_as_long_as_without_it(tmp_path, mode):
    rule = {"sync": "average", "async": "naive_async"}[mode]
    layout = {"mode": mode, "rule": rule, "workers": 3, "epochs": 4}
    plain = simulate(tmp_path / "plain", spec(COSTS, **layout))
    attacked = simulate(tmp_path / "attacked", spec(COSTS, attack=IPM, **layout))
    assert attacked.records["adversary-0"][0]["host"] == "outside"
    assert any(line["replaced"] for line in attacked.lines("adversary-0", "round"))
    event = "round" if mode == "sync" else "applied"
    assert times(attacked, "server-0", event) == pytest.approx(times(plain, "server-0", event), abs=0.02)
    assert sum(line["cpu"] for line in attacked.lines("adversary-0", "round")) == 0.0
    assert attacked.model.tolist() != plain.model.tolist()


def test_an_attacker_waits_for_the_honest_workers(tmp_path):
    """It cannot know what they send before."""
    run = spec({"step": constant(1.0)}, workers=3, attack=IPM, heterogeneity={"slow": {"workers": [1], "factor": 3.0}})
    played = simulate(tmp_path, run, trainer=Quadratic)
    (bad,) = played.lines("adversary-0", "round")[0]["replaced"]
    assert times(played, "server-0") == [3.0, 6.0]
    if bad != 1:
        assert times(played, f"worker-{bad}") == [3.0, 6.0]
