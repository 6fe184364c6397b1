"""How much the updates of workers count in a run: by the experiment, in every role that combines them."""

import numpy as np
import pytest
from executed import run_here
from installed import BACKEND
from interrupted import model, play_through, small
from interrupted import play as play_digits
from policies.test_policy_runs import esync, unequal
from quorum.test_orders import SECONDS, assert_as_defined
from quorum.test_orders import spec as quorum_spec
from simulated import simulate
from toy_trainers import Adding, Tampering, changed, everyone, play, spec

from hpcps.data.shards import all_shards, shard_size
from hpcps.execution.role_factory import update_weights
from hpcps.numerics.layout import Layout
from hpcps.policies import ESync
from hpcps.policies.local_steps import StateServer
from hpcps.protocol.messages import Peer, StepsQuery
from hpcps.roles.weights import ALIKE, UpdateWeights
from hpcps.spec.checks import contradictions
from hpcps.spec.schema import Run

LAYOUT = Layout.of([(f"b{b}", (8,)) for b in range(3)])


def toy(rule, weights, *, servers=1, validators=0, workers=4, epochs=3, **tables):
    validation = {"rule": {"kind": rule} if isinstance(rule, str) else rule, "weights": weights}
    train = {"mode": "sync", "batch_size": 1, **tables.pop("train", {})}
    return spec(
        rule, servers=servers, validators=validators, workers=workers, epochs=epochs,
        train={**train, "epochs": epochs}, validation=validation, **tables,
    )  # fmt: skip


def adding(run):
    """Worker k adds k + 1 in each round."""
    return {peer: Adding(LAYOUT, peer.index + 1) for peer in everyone(run)}


@pytest.mark.parametrize("partition", ["auto", 64])
@pytest.mark.parametrize(("servers", "validators"), [(1, 0), (3, 0), (1, 1), (2, 2), (2, 3)])
def test_the_model_moves_by_the_weighted_mean(tmp_path, servers, validators, partition):
    """Also with validators, each of which counts as much as its workers together."""
    run = toy("average", [1, 2, 2, 5], servers=servers, validators=validators, transport={"partition": partition})
    played = play(tmp_path, run, adding(run))
    np.testing.assert_allclose(played.model, 3 * (1 * 1 + 2 * 2 + 2 * 3 + 5 * 4) / 10, rtol=1e-6)


@pytest.mark.parametrize(("rule", "change"), [("median", 4), ({"kind": "trimmed_mean", "f": 1}, 3.2)])
def test_rules_get_the_weights(tmp_path, rule, change):
    """Of 10, 2.5 are dropped at each end: 1.5 of the weight of 2, and 2.5 of that of 5, are left beside the 2 of 3."""
    run = toy(rule, [1, 2, 2, 5], servers=2)
    played = play(tmp_path, run, adding(run))
    wanted = {"median": 3.5, "trimmed_mean": (0.5 * 2 + 2 * 3 + 2.5 * 4) / 5}[run.validation.rule.kind]
    np.testing.assert_allclose(played.model, 3 * wanted, rtol=1e-6)


def test_equal_weights_are_the_plain_run(tmp_path):
    run = toy("average", "equal", workers=3)
    same = run.model_copy(update={"validation": run.validation.model_copy(update={"weights": (0.3, 0.3, 0.3)})})
    plain, equal = (play(tmp_path / name, each, adding(run)).model for name, each in (("a", run), ("b", same)))
    assert plain.tobytes() == equal.tobytes()


def test_absent_workers_do_not_count(tmp_path):
    """The weights of those that are there are the whole."""
    weights = [1, 2, 2, 5]
    run = toy("average", weights, epochs=20, communication={"participation": 0.5})
    played = play(tmp_path, run, adding(run))
    there = [line["participants"] for line in played.lines("server-0", "round")]
    changes = [sum(weights[k] * (k + 1) for k in here) / sum(weights[k] for k in here) for here in there if here]
    np.testing.assert_allclose(played.model, sum(changes), rtol=1e-5)
    assert {len(here) for here in there} >= {1, 2, 3}


@pytest.mark.parametrize("late", ["drop", "next"])
@pytest.mark.parametrize(("validators", "servers"), [(0, 2), (1, 1), (2, 2)])
def test_a_quorum_weighs_those_that_are_in(validators, servers, late):
    """As its definition does, also the updates that enter a later round."""
    run = quorum_spec(SECONDS, validators, servers, 64, quorum=3, late=late)
    validation = run.validation.model_copy(update={"weights": (1.0, 3.0, 2.0, 4.0)})
    assert_as_defined(run.model_copy(update={"validation": validation}))


def classes(*batches):
    return {"classes": [{"name": f"c{k}", "workers": [k], "batch_size": b} for k, b in enumerate(batches)]}


def test_steps_count_by_their_samples(tmp_path):
    run = toy("average", "steps", workers=3, train={"local_steps": 2}, heterogeneity=classes(1, 3, 4))
    assert update_weights(run).workers == (2, 6, 8)
    played = play(tmp_path, run, adding(run))
    rounds = len(played.lines("server-0", "round"))
    np.testing.assert_allclose(played.model, rounds * (2 * 1 + 6 * 2 + 8 * 3) / 16, rtol=1e-6)


def digits(**validation):
    tables = {"split": "log_normal", "limit": 400, "test_limit": 50}
    return Run.model_validate(
        {
            "name": "samples",
            "topology": {"workers": 4, "validators": 0},
            "model": {"name": "mlp", "backend": BACKEND},
            "data": {"name": "digits", **tables},
            "train": {"epochs": 1, "batch_size": 8},
            "transport": {"kind": "inproc"},
            "validation": validation,
        }
    )


def test_samples_are_the_sizes_of_the_shards(tmp_path):
    run = digits(weights="samples")
    shards = all_shards(
        run.data, shard_size(run.data, 8), run.seed, lambda: np.zeros(400, np.int64), held_out=run.holds_out, least=8
    )
    sizes = tuple(float(len(shard)) for shard in shards)[:4]
    assert len(set(sizes)) > 1
    assert update_weights(run).workers == sizes
    given = run_here(digits(weights=sizes), tmp_path / "given").final_model()
    assert given.tobytes() == run_here(run, tmp_path / "samples").final_model().tobytes()
    assert given.tobytes() != run_here(digits(), tmp_path / "equal").final_model().tobytes()


@pytest.mark.parametrize("validators", [0, 1])
def test_an_asynchronous_update_is_multiplied_by_its_relative_weight(tmp_path, validators):
    run = toy(
        "naive_async", [1, 2, 3, 2], servers=2, validators=validators, train={"mode": "async"}, epochs=4,
        asynchronous={"alpha": 0.5}, transport={"kind": "inproc"},
    )  # fmt: skip
    played = play(tmp_path, run, adding(run))
    factors = {"worker-0": 0.5, "worker-1": 1.0, "worker-2": 1.5, "worker-3": 1.0}
    wanted = sum(
        0.5 * factors[line["reader"]] * (int(line["reader"][-1]) + 1)
        for line in played.log
        if line["kind"] in ("apply", "update")
    )
    assert wanted
    np.testing.assert_allclose(played.model, wanted, rtol=1e-5)


def steps_and_model(played):
    """Return the model of the record: each step halves the distance to the worker's target."""
    taken = [[line["local_steps"] for line in played.lines(f"worker-{k}", "round")] for k in range(2)]
    x = 0.0
    for steps in zip(*taken, strict=True):
        moved = [(1 - 0.5**s) * (8 - 3 * k - x) for k, s in enumerate(steps)]
        x += sum(s * u for s, u in zip(steps, moved, strict=True)) / sum(steps)
    return taken, x


@pytest.mark.parametrize("blocking", [True, False])
def test_esync_weighs_by_the_steps_that_were_taken(tmp_path, blocking):
    weights = {"rule": {"kind": "average"}, "weights": "steps"}
    run = unequal((1.0, 0.21), esync(epsilon=0.05, blocking=blocking), epochs=12, validation=weights)
    assert not contradictions(run)
    played = simulate(tmp_path, run)
    taken, wanted = steps_and_model(played)
    assert max(taken[1]) > 2
    np.testing.assert_allclose(played.model, wanted, rtol=1e-5)


def test_the_state_server_counts_the_steps_that_it_has_allowed():
    """Role 1 says that its first step was its 500th."""
    server = StateServer(ESync(), 2, 2)
    for round in range(3):
        for role in (0, 1):
            server.begin(role, round, 10.0 * round)
        server.report(1, round, 500, 0.1, 10.0 * round + 0.1)
        assert server.taken == [1, 1]
    server.begin(0, 3, 30.0)
    server.report(0, 3, 1, 1.0, 31.0)
    for role in (0, 1):
        server.begin(role, 4, 40.0)
    allowed = server.report(1, 4, 1, 0.1, 40.1)
    assert allowed
    assert server.taken == [1, 1]
    server.report(1, 4, 900, 0.1, 40.2)
    assert server.taken == [1, 1 + allowed]


def test_a_worker_does_not_count_for_steps_that_it_was_not_allowed(tmp_path):
    """It says that its first step was its thousandth, which is more than any role may take."""
    run = toy("average", "steps", workers=2, train={"local_steps": esync(most=1)}, heterogeneity=classes(1, 3))
    wrap = lambda peer, inner: (  # noqa: E731
        Tampering(
            inner,
            lambda below, to, envelope: below.send(to, changed(envelope, k=1000)),
            lambda message: isinstance(message, StepsQuery) and message.k > 0,
        )
        if peer == Peer("worker", 0)
        else inner
    )
    played = play(tmp_path, run, adding(run), wrap)
    rounds = len(played.lines("server-0", "round"))
    np.testing.assert_allclose(played.model, rounds * (1 * 1 + 3 * 2) / 4, rtol=1e-6)


def test_an_attack_that_tries_the_rule_tries_it_with_the_weights(tmp_path):
    attack = {"kind": "searched_alie", "rate": 0.25, "evaluations": 4}
    runs = [toy("average", weights, attack=attack, servers=2) for weights in ("equal", [1, 1, 1, 3])]
    found = [play(tmp_path / str(k), run, adding(run)).model for k, run in enumerate(runs)]
    assert not np.array_equal(*found)


def test_a_run_with_weights_goes_on_from_a_checkpoint(tmp_path):
    rule = {"rule": {"kind": "centered_clipping", "radius": 0.1}, "weights": [1, 2, 4]}
    run = small(validation=rule, train={"epochs": 3})
    assert play_digits(run, tmp_path / "whole")
    play_through(run, tmp_path / "again", [90])
    assert model(tmp_path / "again").tobytes() == model(tmp_path / "whole").tobytes()


def test_weights_of_roles():
    alike = ALIKE
    assert alike.of([Peer("worker", 0)]) is None
    assert alike.factor(Peer("worker", 3)) == 1.0
    weights = UpdateWeights((1.0, 2.0, 3.0), steps=lambda peer: peer.index)
    assert weights.of([Peer("worker", 0), Peer("worker", 2)]).tolist() == [1.0, 6.0]


REFUSED = {
    "krum takes no weights: it selects a number of updates, and no weighted form of that is standard": {
        "validation": {"rule": {"kind": "krum", "f": 0}}
    },
    "bucketing takes no weights: its buckets hold a number of updates": {
        "validation": {"rule": {"kind": "median", "before": [{"kind": "bucketing"}]}}
    },
    "and no weighted form of that is standard: leave it out, or use one of clipping, nnm": {
        "validation": {"rule": {"kind": "krum", "f": 0, "before": [{"kind": "arc"}]}}
    },
    "zeno++ takes no weights: it bounds the norm": {
        "train": {"mode": "async"}, "validation": {"rule": {"kind": "zeno++"}}, "topology": {"validators": 1},
    },
    "has 4 numbers for 5 workers: use one for each worker": {"topology": {"workers": 5}},
    "all numbers are the same, so all updates count alike": {"validation": {"weights": [2, 2, 2, 2]}},
    "the shards of the split iid have the same size": {"validation": {"weights": "samples"}},
    "all workers take as many samples in a round": {"validation": {"weights": "steps"}},
    "server 0 counts the steps that esync allows, and no other process": {
        "validation": {"weights": "steps"}, "train": {"local_steps": {"kind": "esync"}}, "topology": {"servers": 2},
    },
    "the workers compute a plain mean": {
        "train": {"exchange": "ring"}, "topology": {"servers": 0},
    },
    "who serves a worker changes when one is lost": {
        "survive": {"workers": True, "validators": True}, "topology": {"validators": 2},
    },
    "searched_alie tries the rule, and does not know the steps of the round": {
        "validation": {"weights": "steps"}, "train": {"local_steps": {"kind": "esync"}},
        "attack": {"kind": "searched_alie", "rate": 0.25},
    },
}  # fmt: skip


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_combined_with_weights_is_refused(message):
    tables = {
        "name": "refused",
        "topology": {"workers": 4, "validators": 0, "servers": 1},
        "model": {"name": "mlp"},
        "data": {"name": "digits"},
        "train": {"epochs": 1},
        "validation": {"rule": {"kind": "average"}, "weights": [1, 2, 3, 4]},
    }
    for table, values in REFUSED[message].items():
        tables[table] = {**tables.get(table, {}), **values}
    if tables["train"].get("mode") != "async" and tables["topology"]["servers"] == 1:
        assert not contradictions(Run.model_validate({**tables, **PLAIN})), "only the weights are refused"
    found = [problem for problem in contradictions(Run.model_validate(tables)) if problem.path[-1] == "weights"]
    assert any(message in problem.message for problem in found), found


PLAIN = {
    "topology": {"workers": 4, "validators": 0},
    "train": {"epochs": 1},
    "validation": {"rule": {"kind": "average"}, "weights": [1, 2, 3, 4]},
    "survive": {},
    "attack": {"kind": "none"},
}
