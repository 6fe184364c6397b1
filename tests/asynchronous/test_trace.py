"""A run on a tiny quadratic problem, against numbers computed by hand.

One parameter, from 0. Worker 0 goes to 8, worker 1 to -8, the validator to 4; a step halves the distance, alpha is 0.5.
In process both workers' updates arrive before either is applied, so the second is always one version stale.
"""

import numpy as np
import pytest
from toy_trainers import Quadratic, play, spec

from hpcps.numerics.layout import Layout
from hpcps.protocol.messages import Peer

ONE = Layout.of([("x", (1,))])
W0, W1, V0 = Peer("worker", 0), Peer("worker", 1), Peer("validator", 0)


def trainers(validators=1):
    made = {W0: Quadratic(ONE, 8), W1: Quadratic(ONE, -8)}
    return made | ({V0: Quadratic(ONE, 4)} if validators else {})


def trace(tmp_path, monkeypatch, run, made=None):
    """Play a run; return the model after each entry that changed it, and the played run."""
    from hpcps.roles.asynchronous.server import AsyncShard

    models, take = [], AsyncShard.take

    def taken(self, entry, staleness, alpha):
        applied = take(self, entry, staleness, alpha)
        models.append(float(self.model[0]))
        return applied

    monkeypatch.setattr(AsyncShard, "take", taken)
    return models, play(tmp_path, run, made or trainers(run.topology.validators))


POLYNOMIAL = {"kind": "fed_async", "staleness": {"kind": "polynomial", "a": 1.0}}
HINGE = {"kind": "fed_async", "staleness": {"kind": "hinge", "a": 3.0, "b": 0.0}}


@pytest.mark.parametrize("validators", [1, 0])
@pytest.mark.parametrize("per_refresh", ["share", "queued"])
@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        # 0 + 4/2; 2 - 4/2; worker 0 from 2: + 3/2; worker 1 from 0: - 4/2
        ("naive_async", [2.0, 0.0, 1.5, -0.5]),
        ({"kind": "fed_async", "staleness": {"kind": "constant"}}, [2.0, 0.0, 1.5, -0.5]),
        # weight 1/2 for staleness 1: 0 + 2; 2 - 2/2; from 2: + 1.5/2; worker 1 from 1: - (9/2)/2 /2
        (POLYNOMIAL, [2.0, 1.0, 1.75, 0.625]),
        # weight 1/4 for staleness 1: 0 + 2; 2 - 2/4; from 2: + 1.5/4; worker 1 from 1.5: - (9.5/2)/2 /4
        (HINGE, [2.0, 1.5, 1.875, 1.28125]),
    ],
)
def test_rules_without_a_score(tmp_path, monkeypatch, rule, per_refresh, expected, validators):
    settings = {"alpha": 0.5, "updates_per_refresh": per_refresh}
    run = spec(rule, validators=validators, asynchronous=settings)
    models, played = trace(tmp_path, monkeypatch, run)
    # Without a validator the run ends with worker 0's second update, applied before worker 1's.
    assert models == (expected if validators else expected[:3])
    assert played.model.tolist() == [models[-1]]
    assert [line["staleness"] for line in played.log if "staleness" in line] == [0, 1, 1, 1][: len(models)]


def test_zeno_plus_plus(tmp_path, monkeypatch):
    models, played = trace(tmp_path, monkeypatch, spec("zeno++", asynchronous={"alpha": 0.5}))
    # v = 2: 4 is clipped to 2, -4 to -2 and negated; then the validator is at 2, v = 1: 3.5 to 1, -5 to -1, negated
    assert models == [1.0, 2.0, 2.5, 3.0]
    counts = [
        (line["accepted_pairs"], line["turned_pairs"], line["received_pairs"])
        for line in played.lines("validator-0", "round")
    ]
    assert counts == [(1, 1, 2)] * 2


def test_the_log_of_a_run(tmp_path, monkeypatch):
    _, played = trace(tmp_path, monkeypatch, spec("naive_async", asynchronous={"alpha": 0.5}))
    said = [(line["entry"], line["version"], line["kind"], line["reader"], line["request"]) for line in played.log]
    assert said == [
        (1, 1, "apply", "worker-0", 1),
        (2, 2, "apply", "worker-1", 1),
        (3, 2, "read", "validator-0", 1),
        (4, 3, "apply", "worker-0", 2),
        (5, 4, "apply", "worker-1", 2),
        (6, 4, "stop", "validator-0", 2),
    ]
    # The model of the second epoch is the final one; it is evaluated as such.
    assert [line["epoch"] for line in played.lines("validator-0", "evaluation")] == [1, 2]


def test_the_proximal_step_pulls_towards_where_the_steps_began(tmp_path, monkeypatch):
    settings = {"alpha": 0.5, "proximal": {"worker": 0.25, "validator": 0.5}}
    made = trainers()
    models, _ = trace(tmp_path, monkeypatch, spec("naive_async", epochs=1, asynchronous=settings), made)
    assert models == [1.5, 0.0], "4 is pulled back to 3"
    models, _ = trace(tmp_path / "zeno", monkeypatch, spec("zeno++", epochs=1, asynchronous=settings))
    assert models == [0.5, 1.0], "v = 1"


def test_the_first_step_of_a_validator_is_the_initial_model_under_every_rule(tmp_path, monkeypatch):
    settings = {"alpha": 0.5, "proximal": {"validator": 0.5}}
    train = {"first_step": "overwritten", "local_steps": 2}
    models, _ = trace(tmp_path, monkeypatch, spec("naive_async", asynchronous=settings, train=train))
    # The validator steps from 0 to 2, without a proximal step; then 2 + 3/2; 3.5 - 5/2
    assert models == [3.5, 1.0]


def test_alpha_decays_by_the_validators_epoch(tmp_path, monkeypatch):
    decay = {"alpha": 0.5, "alpha_decay": {"factor": 0.5, "epochs": [1, 2]}}
    models, _ = trace(tmp_path, monkeypatch, spec("naive_async", asynchronous=decay))
    # It handles the first updates after its first epoch: 1/4, then 1/8
    assert models[:2] == [1.0, 0.0]
    assert models[2:] == [0.4375, -0.0625]


@pytest.mark.parametrize(("epochs", "seen"), [("validator", [0, 1]), ("own", [None, None])])
def test_whose_epochs_drive_the_workers(tmp_path, epochs, seen):
    made = trainers()
    play(tmp_path, spec("naive_async", asynchronous={"epochs": epochs}), made)
    assert made[W0].calls[:2] == seen


def test_an_absent_worker_trains_on_or_gets_the_model(tmp_path):
    for absent in ("accumulate", "reset"):
        made = trainers()
        run = spec("naive_async", asynchronous={"absent": absent}, communication={"participation": 0.0}, epochs=3)
        played = play(tmp_path / absent, run, made)
        kinds = [line["kind"] for line in played.log if line["reader"].startswith("worker")]
        assert played.model.tolist() == [0.0]
        assert set(kinds) == ({"read"} if absent == "reset" else set())
        assert [line["absent"] for line in played.lines("validator-0", "round")] != [[], [], []]
        # It trains on from where it is, or from the model and its residual, which is its last update.
        went = [4.0, 6.0, 7.0] if absent == "accumulate" else [4.0, 6.0, 5.0]
        assert made[W0].went[:3] == went[: len(made[W0].went)]
        assert len(made[W0].went) > 1


def test_participation_once_in_a_while_sends_what_has_gathered(tmp_path, monkeypatch):
    run = spec("naive_async", workers=1, epochs=8, asynchronous={"alpha": 1.0}, communication={"participation": 0.4})
    models, played = trace(tmp_path, monkeypatch, run, {W0: Quadratic(ONE, 8), V0: Quadratic(ONE, 4)})
    assert models
    cycles = [line["participated"] for line in played.lines("worker-0", "round")]
    steps = [i + 1 for i, participated in enumerate(cycles) if participated][: len(models)]
    assert models == [8 - 8 * 0.5**step for step in steps]
    assert [line["staleness"] for line in played.log if "staleness" in line] == [0] * len(models)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_is_rejected_and_its_worker_gets_the_model(tmp_path, monkeypatch, bad):
    made = trainers()
    made[W1].target = np.float32(bad)
    models, played = trace(tmp_path, monkeypatch, spec("naive_async", asynchronous={"alpha": 0.5}), made)
    assert np.isfinite(played.model).all()
    assert models == [2.0, 3.5]
    refused = played.lines("validator-0", "rejected")
    assert {(line["sender"], line["reason"]) for line in refused} == {("worker-1", "not finite")}
    assert [line["kind"] for line in played.log if line["reader"] == "worker-1"] == ["read", "read"]
