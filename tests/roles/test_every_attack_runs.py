"""Every attack that knows the honest updates, in runs with absent workers and skipped blocks."""

import numpy as np
import pytest
from toy_trainers import Quadratic, everyone, play, spec

from hpcps.attacks import Omniscient, attackers
from hpcps.numerics.layout import Layout
from hpcps.registry import active

LAYOUT = Layout.of([("a", (3,)), ("b", (2,)), ("c", (4,))])
ATTACKS = {kind: attack for kind, attack in active().of("attacks").items() if issubclass(attack, Omniscient)}
RUNS = [(kind, "sync") for kind in ATTACKS]
RUNS += [(kind, "async") for kind, attack in ATTACKS.items() if "rule" not in attack.needs]  # see `hpcps check`
KEYS = {"copycat": {"round": "last"}, "mimic_variance": {"rounds": 3}}


@pytest.mark.sample(8)
@pytest.mark.parametrize(("kind", "mode"), RUNS)
def test_an_attack_runs_to_the_end(tmp_path, kind, mode):
    attack = ATTACKS[kind](rate=0.34, **KEYS.get(kind, {}))
    rule = {"sync": "median", "async": "naive_async"}[mode]
    communication = {"participation": 0.8, "skip_rate": 0.3}
    run = spec(rule, train={"mode": mode, "epochs": 10}, workers=6, validators=1, communication=communication)
    run = run.model_copy(update={"attack": attack})
    trainers = {peer: Quadratic(LAYOUT, 2.0 ** (peer.index + 1), steps_per_epoch=1) for peer in everyone(run)}
    played = play(tmp_path, run, trainers)
    assert np.isfinite(played.model).all()
    lines = [line for name in ("round", "cycle") for line in played.lines("adversary-0", name)]
    replaced = [worker for line in lines for worker in np.atleast_1d(line["replaced"]).tolist()]
    assert len(replaced) > 5
    if mode == "sync":
        assert set(replaced) == set(attackers(attack, 6, run.seed))
