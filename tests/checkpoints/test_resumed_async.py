"""An asynchronous run that was interrupted: updates up to the checkpoint are in the model once, others not at all.

The trainers count: worker k adds 1 to coordinate k of every block, so that the final model says whose updates it holds.
"""

import random
from collections import Counter as Counts

import numpy as np
import pytest
from interrupted import model, play, play_through, records, small
from toy_trainers import Counter

from hpcps.records.collect import collect
from hpcps.training import build

BLOCKS = 5


def counting(shape, per_refresh="queued"):
    servers, validators, workers = shape
    return small(
        topology={"servers": servers, "validators": validators, "workers": workers},
        train={"mode": "async", "epochs": 40, "local_steps": 1},
        validation={"rule": {"kind": "naive_async"}},
        asynchronous={"alpha": 1.0, "updates_per_refresh": per_refresh},
        communication={"participation": 1.0, "skip_rate": 0.0},
        heterogeneity={"delay": {"kind": "lognormal", "median": 1.0, "sigma": 1.0}},
        checkpoint={"every": 3},
    )


@pytest.fixture
def counters(monkeypatch):
    def trainer(run, role, index):
        worker = index if role == "worker" else None
        return Counter(worker, run.topology.workers, BLOCKS, steps_per_epoch=2)

    monkeypatch.setattr(build, "build_trainer", trainer)


@pytest.mark.thorough
@pytest.mark.parametrize(("shape", "per_refresh"), [((1, 1, 3), "queued"), ((3, 2, 5), "share"), ((2, 0, 4), "queued")])
def test_every_update_is_in_it_once(shape, per_refresh, counters, tmp_path):
    run = counting(shape, per_refresh)
    chance = random.Random(str(shape))
    play_through(run, tmp_path / "runs/small", [chance.randrange(100, 2500) for _ in range(8)])
    folder = tmp_path / "runs/small"
    starts = [line for line in records(folder, "server-0") if line["event"] == "start"]
    assert sum("continues" in line for line in starts) > 1

    table = collect(tmp_path).table
    logs = [
        table[(table["role"] == "server") & (table["index"] == s) & (table["event"] == "applied")]
        for s in range(shape[0])
    ]
    said = ["entry", "version", "kind", "submitter", "reader"]
    for log in logs:
        assert log[said].to_numpy().tolist() == logs[0][said].to_numpy().tolist()
    assert logs[0]["entry"].tolist() == list(range(1, len(logs[0]) + 1))
    changes = logs[0][logs[0]["staleness"].notna()]
    assert changes["version"].tolist() == list(range(1, len(changes) + 1))
    applied = Counts(changes["reader"])
    held = model(folder).reshape(BLOCKS, shape[2])
    assert (held == held[0]).all()
    assert held[0].tolist() == [applied[f"worker-{k}"] for k in range(shape[2])]


@pytest.mark.sample(1)
@pytest.mark.parametrize("moment", [400, "the end"])
def test_stops_at_a_checkpoint_when_asked_to(moment, counters, tmp_path):
    run = counting((3, 2, 5))
    polls = 0

    def stop():
        nonlocal polls
        polls += 1
        # At the end, what the coordinator says last meets the checkpoint on its way.
        if moment == "the end":
            return any(line["event"] == "round" and line["round"] == 79 for line in records(tmp_path, "validator-0"))
        return polls > moment

    assert not play(run, tmp_path, stop=stop)
    assert {records(tmp_path, name)[-1]["reason"] for name in ("worker-3", "validator-1", "server-0")} == {"suspended"}
    assert play(run, tmp_path)


def test_alone_it_goes_on_as_if_nothing_had_happened(tmp_path):
    run = small(
        topology={"workers": 1, "validators": 0},
        train={"mode": "async", "epochs": 12, "batch_size": 16, "local_steps": 2},
        validation={"rule": {"kind": "fed_async"}},
        asynchronous={"absent": "reset"},
    )
    play_through(run, tmp_path / "runs/cut", [200, 150])
    table = collect(tmp_path).table
    rounds = table[(table["event"] == "round") & (table["role"] == "worker")]
    assert rounds["round"].tolist() == list(range(len(rounds)))
    assert rounds["step"].is_monotonic_increasing
    evaluations = table[table["event"] == "evaluation"]
    assert evaluations["epoch"].tolist() == list(range(1, 13))
    assert np.isfinite(model(tmp_path / "runs/cut")).all()
