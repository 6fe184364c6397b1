"""Runs whose updates and models are in the memory of a device give the model of a run on the host, to the last bit.

The device is `late_device`, so a wait that is missing anywhere makes another model.
"""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from executed import ROOT, launch, lines, run_here

from hpcps.launch.placement import place
from hpcps.records.run_directory import RunDirectory
from hpcps.spec.schema import Run, Topology

MPIRUN = Path(sys.executable).parent / "mpirun"
ROLES = ("servers", "validators", "workers")


def spec(rule, servers, validators, **changes):
    tables = {
        "name": "buffers",
        "topology": {"servers": servers, "validators": validators, "workers": 3},
        "model": {"name": "mlp"},
        "data": {"name": "digits", "limit": 160, "test_limit": 100},
        "train": {"epochs": 2, "batch_size": 8, "local_steps": 2, "optimizer": {"lr": 0.05}},
        "communication": {"participation": 0.7, "skip_rate": 0.3},
        "validation": {"rule": {"kind": rule}},
        "attack": {"kind": "negative", "rate": 0.3},
    }
    for table, values in changes.items():
        tables[table] = {**tables.get(table, {}), **values} if table != "attack" else values
    return Run.model_validate(tables)


CUT = {"transport": {"partition": 4096}}
ALONE = {"topology": {"workers": 1}, "communication": {"participation": 1.0}}
"""With one worker that always sends, asynchronous training leaves nothing to chance."""
ASYNC = {**ALONE, "train": {"mode": "async", "epochs": 1}}
DC_ASGD = {
    **ALONE, "attack": {"kind": "sign_flip"},
    "train": {**ASYNC["train"], "local_steps": 1, "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.0}},
    "validation": {"rule": {"kind": "dc_asgd", "compensation": 2.0}},
}  # fmt: skip
MANY = spec("zeno++", 2, 1, train={"mode": "async", "epochs": 6}, attack={"kind": "negative", "rate": 0.1})
"""Its result depends on the order of arrivals; but no process ever reads anything that is not finite."""

SMALL = {"topology": {"workers": 2}, "train": {"epochs": 1}}
POINTS = {
    "servers combine": spec("average", 2, 0, topology={"workers": 2}, train={"epochs": 1, "global_lr": 0.7}),
    "in partitions": spec("zeno", 2, 1, **SMALL, **CUT),
    "a rule per coordinate": spec("phocas", 1, 1, train={"epochs": 1}),
    "a rule of whole updates": spec("krum", 1, 0, train={"epochs": 1}, validation={"rule": {"kind": "krum", "f": 0}}),
    "blocks not finite": spec("average", 2, 0, **SMALL, **CUT, attack={"kind": "nan", "rate": 0.4}),
    "an adversary": spec("average", 1, 1, **SMALL, attack={"kind": "ipm", "rate": 0.4, "epsilon": 1.5}),
    "asynchronous, a validator": spec("zeno++", 2, 1, **ASYNC),
    "asynchronous, pulled weights": spec("dc_asgd", 2, 1, **DC_ASGD),
}
"""Both kinds of combiners, with everything that a run can send."""


def with_buffers(run, mode):
    """The run with another `transport.device_buffers`, and training wherever the device is."""
    return run.model_copy(update={"transport": run.transport.model_copy(update={"device_buffers": mode})})


def models(folder, points, device):
    """Execute runs in one launch with direct buffers; return their models, and what should not have happened."""
    world = Topology(**{role: max(getattr(run.topology, role) for run in points.values()) for role in ROLES})
    runs = {name: with_buffers(run, "direct") for name, run in points.items()}
    path = f"{ROOT}{os.pathsep}{Path(__file__).parent}"
    variables = {"PYTHONPATH": path, "HPCPS_DEVICE": f"late_device:{device}"}
    adversary = any(run.has_adversary for run in points.values())
    launch(folder, runs, place(world, adversary=adversary), MPIRUN, **variables)
    for name, run in points.items():
        for process in ("server-0", "worker-0"):
            found = lines(folder / name, process)[0]
            assert found["device_buffers"] == "direct"
            assert len(found["device_buffers_direct"]) == sum(getattr(run.topology, role) for role in ROLES) - 1
    return {name: RunDirectory(folder / name).final_model() for name in points}


@pytest.fixture(scope="module")
def on_host(tmp_path_factory):
    """The models of the same runs in this process."""
    folder = tmp_path_factory.mktemp("here")
    return {name: run_here(run, folder / name).final_model() for name, run in POINTS.items()}


@pytest.mark.usefixtures("starts_processes")
def test_a_run_on_devices_gives_the_model_of_a_run_on_the_host(tmp_path, on_host):
    there = models(tmp_path, {**POINTS, "many workers": MANY}, "open_device")
    different = []
    for name, here in on_host.items():
        assert np.isfinite(here).all()
        wrong = np.count_nonzero(there[name] != here)
        different += [f"{name}: {wrong} of {here.size} elements"] * bool(wrong)
    assert np.isfinite(there["many workers"]).all()
    many = RunDirectory(tmp_path / "many workers")
    events = [line for file in many.records for line in lines(many.path, file.stem)]
    assert any(event["event"] == "applied" and event["kind"] == "apply" for event in events)
    different += [f"many workers: {event}" for event in events if event["event"] in ("rejected", "diverged")]
    assert not different, "\n".join(different)


@pytest.mark.soak
@pytest.mark.usefixtures("starts_processes")
def test_a_run_on_tensors_gives_the_model_of_a_run_on_the_host_up_to_rounding(tmp_path, on_host):
    """What combines and sends tensors; other rules are in `tests/rules/test_rules_on_tensors.py`."""
    few = {name: run for name, run in POINTS.items() if run.topology.workers < 3 and not run.has_adversary}
    assert len(few) == 5
    there = models(tmp_path, few, "open_tensors")
    for name, here in there.items():
        np.testing.assert_allclose(here, on_host[name], rtol=1e-3, atol=1e-4, err_msg=name)
