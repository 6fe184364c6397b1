"""Runs with a server optimizer in one process: shards, partitions, validators, absent workers, checkpoints, logs."""

import numpy as np
import pytest
from interrupted import model, play, play_through, records, small
from toy_trainers import Adding

from hpcps.numerics.layout import Layout
from hpcps.records.collect import collect
from hpcps.training import build

NESTEROV = {"optimizer": {"kind": "nesterov"}}


def final(tmp_path, **tables):
    """Play a small run; return its final model."""
    folder = tmp_path / str(len(list(tmp_path.iterdir())))
    assert play(small(**tables), folder)
    return model(folder)


@pytest.mark.sample(1)
@pytest.mark.parametrize("optimizer", [{"kind": "nesterov"}, {"kind": "yogi", "lr": 0.05}], ids=["nesterov", "yogi"])
def test_servers_partitions_and_validators_do_not_show(optimizer, tmp_path):
    tables = {"server": {"optimizer": optimizer}, "validation": {"rule": {"kind": "median"}}}
    tables["train"] = {"epochs": 2, "batch_size": 16, "local_steps": 3}
    models = []
    for servers, validators, partition in ((1, 0, "auto"), (3, 0, 4096), (1, 1, "auto"), (2, 1, 2048)):
        topology = {"servers": servers, "validators": validators, "workers": 3}
        models.append(final(tmp_path, topology=topology, transport={"partition": partition}, **tables))
    for other in models[1:]:
        np.testing.assert_array_equal(other, models[0])


@pytest.mark.sample(1)
@pytest.mark.parametrize("validators", [0, 1])
def test_sgd_of_rate_one_with_one_step_equals_averaging(validators, tmp_path):
    tables = {
        "topology": {"servers": 2, "validators": validators, "workers": 3},
        "train": {"epochs": 2, "batch_size": 16, "local_steps": 1, "optimizer": {"name": "sgd", "momentum": 0.0}},
    }
    plain = final(tmp_path, **tables)
    np.testing.assert_array_equal(final(tmp_path, server={"optimizer": "sgd"}, **tables), plain)
    other = final(tmp_path, server={"optimizer": {"kind": "sgd", "lr": 0.5}}, **tables)
    np.testing.assert_array_equal(other, final(tmp_path, **{**tables, "train": {**tables["train"], "global_lr": 0.5}}))
    assert not np.array_equal(other, plain)
    assert not np.array_equal(final(tmp_path, server=NESTEROV, **tables), plain)


def test_a_round_without_updates_moves_the_model_by_its_momentum_and_the_record_says_so(tmp_path):
    run = small(
        topology={"servers": 2, "validators": 0, "workers": 2},
        communication={"participation": 0.3, "skip_rate": 0.0},
        server=NESTEROV,
    )
    assert play(run, tmp_path)
    empty = 0
    for server in range(2):
        moved = False
        for line in (line for line in records(tmp_path, f"server-{server}") if line["event"] == "round"):
            assert (line["update_norm"] > 0) == bool(line["participants"])
            moved |= line["update_norm"] > 0
            assert (line["change_norm"] > 0) == moved
            empty += moved and line["update_norm"] == 0
    assert empty > 5


@pytest.mark.sample(1)
@pytest.mark.parametrize("optimizer", [{"kind": "momentum"}, {"kind": "adam", "lr": 0.02}], ids=["momentum", "adam"])
def test_ends_as_if_nothing_had_happened(optimizer, tmp_path):
    topology = {"servers": 2, "validators": 0, "workers": 3}
    run = small(topology=topology, server={"optimizer": optimizer}, transport={"partition": 8192})
    assert play(run, tmp_path / "whole")
    play_through(run, tmp_path / "cut", [1000] * 6)
    assert any("continues" in line for line in records(tmp_path / "cut", "server-1"))
    np.testing.assert_array_equal(model(tmp_path / "cut"), model(tmp_path / "whole"))


@pytest.fixture
def adders(monkeypatch):
    """The update of worker k is k + 1 everywhere."""

    def trainer(run, role, index):
        return Adding(Layout.of([("a", (3,)), ("b", (2,))]), index + 1 if role == "worker" else 0, steps_per_epoch=2)

    monkeypatch.setattr(build, "build_trainer", trainer)


@pytest.mark.sample(1)
@pytest.mark.parametrize(("servers", "validators"), [(1, 0), (1, 1), (2, 0), (2, 1)])
def test_delayed_nesterov_is_a_function_of_the_log(servers, validators, adders, tmp_path):
    """Also through interruptions: the log of server 0 says whose updates entered, and in which order."""
    run = small(
        topology={"servers": servers, "validators": validators, "workers": 3},
        train={"mode": "async", "epochs": 20, "local_steps": 1},
        validation={"rule": {"kind": "naive_async"}},
        asynchronous={"alpha": 1.0},
        communication={"participation": 1.0, "skip_rate": 0.0},
        heterogeneity={"delay": {"kind": "lognormal", "median": 1.0, "sigma": 1.0}},
        server={"optimizer": {"kind": "delayed_nesterov", "lr": 0.5, "momentum": 0.75, "every": 3}},
        checkpoint={"every": 2},
    )
    folder = tmp_path / "runs/small"
    play_through(run, folder, [400, 500, 600])
    assert sum("continues" in line for line in records(folder, "server-0")) > 1
    table = collect(tmp_path).table
    table = table[(table["event"] == "applied") & (table["role"] == "server") & (table["index"] == 0)]
    log = table.loc[table["staleness"].notna(), "reader"].tolist()
    expected = momentum = total = 0.0
    for number, reader in enumerate(log, 1):
        update = int(reader.removeprefix("worker-")) + 1
        expected += 0.5 * update / 3
        total += update
        if number % 3 == 0:
            momentum = 0.75 * momentum + total / 3
            expected += 0.5 * 0.75 * momentum
            total = 0.0
    assert len(log) > 30
    np.testing.assert_allclose(model(folder), np.full(5, expected), rtol=1e-4)
