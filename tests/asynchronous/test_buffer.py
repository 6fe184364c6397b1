"""Asynchronous servers that combine the updates of a buffer: as defined, over every way of execution, and refused."""

from math import sqrt

import numpy as np
import pytest
from executed import run_here
from interrupted import model, records, small
from interrupted import play as play_until_stopped
from simulated import constant
from simulated import simulate as simulate_toys
from simulated import spec as simulated_spec
from small_experiment import KEYS
from toy_trainers import Adding, everyone, play, spec

from hpcps.numerics.layout import Layout
from hpcps.protocol.roster import shards_of
from hpcps.records.run_directory import RunDirectory
from hpcps.rules import Median, TrimmedMean
from hpcps.spec.checks import contradictions
from hpcps.spec.schema import Run
from hpcps.spec.warnings import warnings_of_run
from hpcps.training import build

LAYOUT = Layout.of([(f"b{b}", (8,)) for b in range(3)])


def toy(rule="average", *, buffer=3, servers=1, validators=0, workers=4, epochs=6, weights="equal", **settings):
    rule = rule if isinstance(rule, dict) else {"kind": rule}
    return spec(
        rule, servers=servers, validators=validators, workers=workers, epochs=epochs,
        validation={"rule": rule, "weights": weights}, asynchronous={"buffer": buffer, **settings},
    )  # fmt: skip


def adding(run):
    """Worker k adds k + 1 in each cycle."""
    return {peer: Adding(LAYOUT, peer.index + 1) for peer in everyone(run)}


def updates(played, server="server-0"):
    return [line for line in played.lines(server, "applied") if line["kind"] in ("apply", "update")]


def defined(played, size, combine, alpha, weight=lambda staleness: 1.0):
    """Return the model by the definition: of each `size` updates in the order of the log, in float64."""
    log, model = updates(played), 0.0
    for first in range(0, len(log) - size + 1, size):
        part = log[first : first + size]
        values = [(int(line["reader"][-1]) + 1) * weight(line["staleness"]) for line in part]
        model += alpha * combine(np.array(values), [int(line["reader"][-1]) for line in part])
    return model


@pytest.mark.parametrize("validators", [0, 2])
@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("alpha", [0.4, 1.0])
def test_the_mean_of_the_last_updates_enters_the_model(tmp_path, validators, servers, alpha):
    run = toy(servers=servers, validators=validators, alpha=alpha)
    played = play(tmp_path, run, adding(run))
    assert len(updates(played)) > 6
    np.testing.assert_allclose(played.model, defined(played, 3, lambda x, _: x.mean(), alpha), rtol=1e-5)


@pytest.mark.parametrize(
    ("rule", "combine"),
    [
        ({"kind": "median"}, lambda x, _: np.median(x)),
        ({"kind": "trimmed_mean", "f": 1}, lambda x, _: np.sort(x)[1:-1].mean()),
        ({"kind": "median", "before": [{"kind": "clipping", "radius": 12.0}]}, None),
        ({"kind": "krum", "f": 1}, None),
    ],
)
def test_any_synchronous_rule_combines_them(tmp_path, rule, combine):
    run = toy(rule, buffer=5, alpha=1.0)
    played = play(tmp_path, run, adding(run))
    whole = run.validation.rule

    def by_rule(values, _):
        return float(whole(np.repeat(values[:, None], LAYOUT.size, axis=1).astype(np.float32))[0])

    wanted = defined(played, 5, combine or by_rule, 1.0)
    np.testing.assert_allclose(played.model, wanted, rtol=1e-5)
    lines = [line for line in updates(played) if "combined" in line]
    assert lines
    for number, line in enumerate(lines):
        part = updates(played)[5 * number : 5 * number + 5]
        assert line["combined"] == [int(each["reader"][-1]) for each in part]
        assert [each["buffered"] for each in part] == [1, 2, 3, 4, 0]


def test_servers_have_whole_blocks_for_a_rule_that_sees_them():
    """Also with validators, which pass updates on."""
    layout = Layout.of([("a", (100,)), ("b", (900,)), ("c", (10,))])
    for rule, whole in (({"kind": "median", "before": [{"kind": "nnm", "per": "block"}]}, True), ("median", False)):
        for validators in (0, 1):
            inner = {start for start, _ in shards_of(toy(rule, servers=2, validators=validators), layout)} - {0, 1010}
            assert bool(inner - {100, 1000}) != whole


def test_with_weights(tmp_path):
    weights = [1, 2, 4, 1]
    run = toy("average", buffer=4, alpha=1.0, weights=weights)
    played = play(tmp_path, run, adding(run))
    mean = lambda x, who: np.average(x, weights=[weights[k] for k in who])  # noqa: E731
    np.testing.assert_allclose(played.model, defined(played, 4, mean, 1.0), rtol=1e-5)
    run = toy("median", buffer=5, alpha=1.0, weights=weights, servers=2, validators=1)
    played = play(tmp_path / "median", run, adding(run))
    exact = lambda x, who: float(Median()(x[:, None], weights=[weights[k] for k in who])[0])  # noqa: E731
    np.testing.assert_allclose(played.model, defined(played, 5, exact, 1.0), rtol=1e-5)


def test_staleness_counts_changes_of_the_model_and_weighs(tmp_path):
    """In virtual time, where the slow worker is overtaken."""
    staleness = {"kind": "polynomial", "a": 0.5}
    run = simulated_spec(
        {"step": constant(0.1)}, mode="async", workers=3, epochs=40,
        asynchronous={"buffer": 2, "staleness": staleness, "alpha": 0.5},
        heterogeneity={"slow": {"workers": [2], "factor": 9.7}},
    )  # fmt: skip

    def trainer(layout, target):
        return Adding(layout, (8 - target) / 3 + 1)

    played = simulate_toys(tmp_path, run, trainer=trainer)
    log = updates(played)
    changes, base = 0, {f"worker-{k}": 0 for k in range(3)}
    for number, line in enumerate(log):
        # It has the model that was there when its update before had come.
        assert line["staleness"] == changes - base[line["reader"]]
        assert line["weight"] == pytest.approx(1 / sqrt(1 + line["staleness"]))
        changes += number % 2
        base[line["reader"]] = changes
    assert {line["staleness"] for line in log} >= {0, 1}
    assert max(line["staleness"] for line in log) > 4
    wanted = defined(played, 2, lambda x, _: x.mean(), 0.5, lambda t: 1 / sqrt(1 + t))
    np.testing.assert_allclose(played.model, wanted, rtol=1e-5)


def test_the_server_optimizer_takes_a_step_for_each_buffer(tmp_path):
    run = toy(buffer=3, alpha=1.0)
    server = run.server.model_validate({"optimizer": {"kind": "adam", "lr": 0.5}})
    run = run.model_copy(update={"server": server})
    assert not [p for p in contradictions(run) if p.path[0] == "server"]
    played = play(tmp_path, run, adding(run))
    log = updates(played)
    assert [("change_norm" in line) for line in log] == [line["buffered"] == 0 for line in log]
    assert played.model[0] > 0


def digits(**tables):
    run = {
        "name": "buffered",
        "topology": {"servers": 2, "validators": 0, "workers": 3},
        "model": {"name": "mlp", "backend": KEYS["model.backend"]},
        "data": {"name": "digits", "limit": 320, "test_limit": 40},
        "train": {"mode": "async", "epochs": 3, "batch_size": 16, "local_steps": 1, "optimizer": {"lr": 0.05}},
        "transport": {"kind": "inproc"},
        "communication": {"skip_rate": 0.3},
        "asynchronous": {"buffer": 3, "staleness": {"kind": "polynomial"}},
        "validation": {"rule": {"kind": "trimmed_mean", "f": 1}},
        "checkpoint": {"every": 1},
    }
    for table, values in tables.items():
        run[table] = {**run.get(table, {}), **values}
    return Run.model_validate(run)


@pytest.mark.parametrize("seed", range(3))
def test_a_replay_gives_the_same_run(tmp_path, seed):
    from replay.recorded import play as play_by_chance

    from hpcps.execution.replay.replayed_run import replay

    run = digits(topology={"validators": seed % 2}, attack={"kind": "nan", "rate": 0.2})
    folder = play_by_chance(run, tmp_path, seed)
    result = replay(folder, run, tmp_path / "again", print)
    assert result.difference is None
    assert (result.models, result.left) == (2, 0)


@pytest.mark.parametrize(("servers", "validators"), [(1, 0), (2, 1)])
def test_a_run_goes_on_with_the_buffer_of_its_checkpoint(tmp_path, monkeypatch, servers, validators):
    """A buffer that is partly full when the run stops is filled by updates that come after it has gone on."""
    monkeypatch.setattr(build, "build_trainer", lambda run, role, index: Adding(LAYOUT, index + 1))
    run = small(
        topology={"servers": servers, "validators": validators, "workers": 2},
        train={"mode": "async", "epochs": 40, "local_steps": 1},
        asynchronous={"buffer": 5, "alpha": 1.0},
        communication={"participation": 1.0, "skip_rate": 0.0},
        validation={"rule": {"kind": "average"}},
        checkpoint={"every": 0},
    )
    left = []
    for looks in (17, 29, 40, 48, 61):
        folder, asked = tmp_path / str(looks), iter([False] * looks)
        assert not play_until_stopped(run, folder, stop=lambda asked=asked: next(asked, True))
        left.append(len(log_of(folder)) % 5)
        assert play_until_stopped(run, folder)
        log = log_of(folder)
        numbers = [int(line["reader"][-1]) + 1 for line in log[: len(log) // 5 * 5]]
        np.testing.assert_allclose(model(folder), sum(numbers) / 5, rtol=1e-6)
    assert set(left) - {0}


def log_of(folder):
    return [line for line in records(folder, "server-0") if line.get("kind") in ("apply", "update")]


def test_values_that_are_not_finite_are_rejected(tmp_path):
    run = digits(attack={"kind": "nan", "rate": 0.5, "scope": "block"}, validation={"rule": {"kind": "median"}})
    directory = run_here(run, tmp_path)
    assert np.isfinite(RunDirectory(directory.path).final_model()).all()
    text = (tmp_path / "records/server-0.jsonl").read_text()
    assert '"rejected"' in text


REFUSED = {
    "zeno++ decides on one update, and asynchronous.buffer collects several: use one of aksel, average": {
        "validation": {"rule": {"kind": "zeno++"}}, "topology": {"validators": 1},
    },
    "zeno needs a validator's own data": {"validation": {"rule": {"kind": "zeno"}}, "topology": {"validators": 1}},
    "krum sees whole updates, but with asynchronous.buffer each of the 2 servers combines only a part": {
        "validation": {"rule": {"kind": "krum", "f": 0}}, "topology": {"validators": 1},
    },
    "trimmed_mean needs at least 2 f + 1 updates, and f = 2 of 3, which are those of the buffer": {
        "validation": {"rule": {"kind": "trimmed_mean", "f": 2}}
    },
    "searched_alie tries the rule on the updates of a round, but asynchronous updates come one at a time": {
        "attack": {"kind": "searched_alie", "rate": 0.4}, "topology": {"validators": 1},
    },
    "arc takes no weights": {
        "validation": {"rule": {"kind": "median", "before": [{"kind": "arc", "per": "block"}]}, "weights": [1, 2, 3]}
    },
    "has an effect only with buffer": {"asynchronous": {"buffer": None, "staleness": {"kind": "hinge"}}},
    "is for train.mode = \"sync\", but the mode is \"async\"": {"asynchronous": {"buffer": None}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("rule", "buffer", "expected"),
    [
        ({"kind": "phocas"}, 2, "a buffer has 2: the model never changes; use a larger asynchronous.buffer"),
        ({"kind": "trimmed_mean"}, 4, "a buffer has 4: with trim = 0.2 it is the mean; use a larger asynchronous.buff"),
        ({"kind": "rlr", "threshold": 3}, 2, "more than the 2 updates of a buffer: use a lower threshold, or a larger"),
        ({"kind": "rlr", "threshold": 4}, 8, ""),
    ],
)
def test_warnings_count_the_updates_of_the_buffer(rule, buffer, expected):
    problems = warnings_of_run(toy(rule, buffer=buffer, workers=3))
    found = [problem.message for problem in problems if problem.path == ("validation", "rule")]
    assert [expected in message for message in found] == [True] * bool(expected)


@pytest.mark.parametrize("message", REFUSED)
def test_what_cannot_be_combined_with_a_buffer_is_refused(message):
    assert not contradictions(digits(train={"optimizer": {"name": "sgd", "lr": 0.05}}))
    found = contradictions(digits(**REFUSED[message]))
    assert any(message in problem.message for problem in found), found


def test_the_rule_is_called_as_in_a_notebook():
    rows = np.arange(15.0, dtype=np.float32).reshape(3, 5)
    assert TrimmedMean(f=1)(rows).tolist() == rows[1].tolist()
