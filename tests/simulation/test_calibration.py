"""Costs fitted to records: recovered where they are known, refused where they cannot be had."""

import json
import random
import re
import sys

import numpy as np
import pytest
from simulated import spec

from hpcps.errors import RunError
from hpcps.execution.simulation.__main__ import main
from hpcps.execution.simulation.calibration import fit
from hpcps.records.run_directory import PLUGINS, RunDirectory
from hpcps.records.writer import RecordWriter
from hpcps.registry.components import sha256
from hpcps.spec.schema import Run

KNOWN = {"step": 2e-3, "evaluate": 3e-2, "pack": 1e-4, "adopt": 5e-5, "call": 4e-4, "element": 2e-8, "apply": 7e-5}
SEND, RECEIVE, BYTE, LINE, POLL = 1e-4, 5e-5, 1e-9, 3e-4, 1e-5
SIZE, WORKERS = 1000, 4


def measured_run(**changes):
    run = spec({}, workers=WORKERS, validators=1, servers=2).model_dump(mode="json")
    del run["simulation"]
    run["transport"]["kind"] = "mpi"
    for table, values in changes.items():
        run[table] |= values
    return run


def write_run(path, rounds=30, run=None, columns=True, byte=BYTE, late=0, plugins=()):
    """Write the records of a run whose costs are known, with a few rounds in which the machine did something else.

    An evaluation ends so many rounds later than it began.
    """
    directory, draw = RunDirectory(path), random.Random(1)
    directory.create({"run_id": "known", "run": run or measured_run(), "plugins": plugins})
    directory.write_provenance({"machine": {"usable_cores": 3}})
    for server in range(2):
        directory.save(f"final/server-{server}", np.zeros(SIZE // 2, np.float32))
    processes = [("worker", k) for k in range(WORKERS)] + [("validator", 0), ("server", 0), ("server", 1)]
    for role, index in processes:
        with RecordWriter(path, "known", role, index, "here") as record:
            record.write("start")
            for number in range(rounds):
                present = [k for k in range(WORKERS) if draw.random() < 0.7]
                sent, received, volume = {
                    "worker": (1, 2, 8000 if index in present else 4000),
                    "validator": (2, WORKERS + 2, 4000 * len(present)),
                    "server": (WORKERS + 1, 1, 10000),
                }[role]
                fields = {"step": 4 * (number + 1)} if role != "server" else {}
                tasks = {"exchange": SEND * sent + RECEIVE * received + byte * volume + LINE, "wait": 50 * POLL}
                if role == "worker":
                    # the first calls, and one round in which something was in the way
                    burden = 9 if number < 2 or number == 17 else 1
                    tasks |= {"train": 4 * KNOWN["step"] * burden, "pack": KNOWN["pack"], "adopt": KNOWN["adopt"]}
                elif role == "validator":
                    fields |= {"participants": present}
                    tasks |= {"combine": KNOWN["call"] + KNOWN["element"] * len(present) * SIZE}
                    if number % 2:
                        record.write("evaluation", round=number - late, step=4 * (number - late))
                        tasks["evaluate"] = KNOWN["evaluate"]
                else:
                    tasks["combine"] = KNOWN["apply"]
                if columns:
                    fields |= {"messages_sent": sent, "messages_received": received, "polls": 50}
                    fields |= {f"cpu_{task}": seconds for task, seconds in tasks.items()}
                record.write("round", round=number, bytes_sent=volume, bytes_received=0, **fields)
    directory.finish(1.0)
    return path


def test_known_costs_are_recovered(tmp_path):
    found = fit(write_run(tmp_path))
    costs = found.costs
    assert found.cores == 3
    assert costs.step.seconds == pytest.approx(KNOWN["step"])
    assert costs.evaluate == pytest.approx(KNOWN["evaluate"])
    assert (costs.pack.call, costs.adopt.call, costs.apply.call) == pytest.approx((1e-4, 5e-5, 7e-5))
    assert (costs.combine.call, costs.combine.element) == pytest.approx((KNOWN["call"], KNOWN["element"]))
    found = costs.messages
    assert (found.send, found.receive, found.byte, found.record) == pytest.approx((SEND, RECEIVE, BYTE, LINE))
    assert costs.waiting.poll == pytest.approx(POLL)
    assert costs.waiting.interval == 1e-3


def test_an_evaluation_counts_where_its_cpu_seconds_are(tmp_path):
    path = write_run(tmp_path, late=2)
    with RecordWriter(path, "known", "validator", 0, "here") as record:
        # The last one ended after the last round.
        record.write("evaluation", round=28, step=112)
    assert fit(path).costs.evaluate == pytest.approx(KNOWN["evaluate"])


def test_an_evaluator_has_the_cpu_seconds_of_its_evaluations(tmp_path):
    path = write_run(tmp_path)
    with RecordWriter(path, "known", "evaluator", 0, "here") as record:
        record.write("start")
        for seconds in (0.125, 0.375):
            record.write("evaluated", round=0, cpu_evaluate=seconds)
        record.write("end", cpu_evaluate=9.0)
    assert fit(path).costs.evaluate == pytest.approx(0.25)


def test_no_cost_is_negative(tmp_path):
    # who sends more, needs less: no byte costs anything then
    found = fit(write_run(tmp_path, byte=-1e-8)).costs
    assert found.messages.byte == 0
    values = [*found.messages.model_dump().values(), *found.combine.model_dump().values()]
    assert min(values) >= 0


def refusal(path, run=None):
    with pytest.raises(RunError) as caught:
        fit(path, run)
    return re.sub(re.escape(str(path)), "HERE", str(caught.value))


def test_what_cannot_be_used_is_refused(tmp_path):
    assert refusal(tmp_path / "nowhere") == (
        "HERE is no folder of a finished run: name one, such as results/quickstart/runs/1a2b3c4d5e"
    )
    short = write_run(tmp_path / "short", rounds=5)
    assert refusal(short) == (
        "the records in HERE have too few rounds (worker-0, worker-1, worker-2, worker-3): execute a run of at "
        "least 13 rounds"
    )
    old = write_run(tmp_path / "old", columns=False)
    assert "no CPU seconds by task (an older version)" in refusal(old)
    inproc = write_run(tmp_path / "inproc", run=measured_run(transport={"kind": "inproc"}))
    assert refusal(inproc) == (
        "HERE is a run over transport.kind = inproc, whose records do not show the costs of MPI: name a run over MPI"
    )
    ring = write_run(tmp_path / "ring", run=measured_run(train={"exchange": "ring"}))
    assert refusal(ring).startswith("HERE is a run without servers")
    (short / "spec.json").write_text(json.dumps({"run": {"name": 3}}))
    assert refusal(short) == (
        "the run in HERE cannot be used: it is marked as done, but spec.json has changed since the end of the run; "
        "run it again"
    )
    (short / "DONE").write_text("{}")  # as in an earlier version, which listed no files
    assert refusal(short).startswith("HERE cannot be read:")


def test_another_model_or_batch_size_is_refused(tmp_path):
    path = write_run(tmp_path)
    assert fit(path, Run.model_validate(measured_run(topology={"workers": 9})))
    for run, what in (
        (measured_run() | {"model": {"name": "cnn"}}, "model.name = mlp, this run has cnn"),
        (measured_run(train={"batch_size": 8}), "train.batch_size = 32, this run has 8"),
    ):
        assert what in refusal(path, Run.model_validate(run))


MODEL = '''
from typing import Literal

from hpcps.models import Model


class Line(Model):
    """One linear layer."""

    name: Literal["line"] = "line"

    def build(self, shape, classes):
        from torch import nn

        return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))
'''


def test_the_simulation_table_of_a_run_with_a_plugin(tmp_path, monkeypatch, capsys):
    run = measured_run(train={"epochs": 1, "batch_size": 8}) | {"model": {"name": "line"}}
    plugin = {"file": "line.py", "text": MODEL, "sha256": sha256(MODEL)}
    path = write_run(tmp_path / "run", run=run, plugins=[plugin])
    assert RunDirectory(path).plugins == (("line.py", MODEL),)
    monkeypatch.setattr(sys, "argv", ["simulation", str(path)])
    assert main() == 0, capsys.readouterr().err
    assert '[simulation]\nkind = "modelled"\ncores = 3\nspeed = ' in capsys.readouterr().out
    (path / PLUGINS / "line.py").write_text("import nothing_like_this")
    (path / "DONE").write_text("{}")  # as in an earlier version, which listed no files
    assert main() == 1
    assert "nothing_like_this" in capsys.readouterr().err
