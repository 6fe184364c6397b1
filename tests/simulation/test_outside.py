"""What the adversary does takes no simulated time, and nobody's messages wait for its messages."""

import pytest
from simulated import Quadratic, constant, simulate, spec, times

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
