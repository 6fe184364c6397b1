"""A run over mpirun whose workers and validator train on a GPU, where there is one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from hpcps.launch.detect import detect_mpi
from hpcps.launch.gpu_mpi import try_device_memory
from hpcps.launch.plan import ACCEPTED
from hpcps.numerics.vectors import on_host
from hpcps.transport.device import open_device

ROOT = Path(__file__).parents[2]
EXPERIMENT = """
name = "onagpu"
seed = 1
[topology]
servers = 1
validators = 1
workers = 3
[model]
name = "mlp"
[data]
name = "digits"
[train]
epochs = 8
batch_size = 16
local_steps = 4
device = "{device}"
optimizer = {{ name = "nag", lr = 0.1 }}
lr_decay = {{ factor = 0.1, epochs = [6] }}
[[sweep]]
"validation.rule" = [{{ kind = "average" }}, {{ kind = "zeno" }}]
"""
"""Under the first rule the validator only observes, under the second one it trains."""
GPU = pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"))


@pytest.mark.parametrize("device", [GPU])
def test_a_small_experiment(tmp_path, device):
    (tmp_path / "onagpu.toml").write_text(EXPERIMENT.format(device=device))
    command = [sys.executable, "-m", "hpcps", "run", str(tmp_path / "onagpu.toml"), "--results", str(tmp_path)]
    variables = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    # That there is no MPS is the machine's business.
    slower = [
        line for line in (done.stdout + done.stderr).splitlines() if "slower" in line and "without MPS" not in line
    ]
    assert slower == [], "graphs and pinned memory are to be had"
    runs = list((tmp_path / "onagpu/runs").iterdir())
    assert len(runs) == 2
    for run in runs:
        assert (run / "DONE").exists()
        lines = {
            path.stem: [json.loads(line) for line in path.read_text().splitlines()]
            for path in (run / "records").glob("*.jsonl")
        }
        training_roles = {name for name in lines if not name.startswith("server")}
        assert {lines[name][0]["device"].partition(":")[0] for name in training_roles} == {device}
        accuracy = [line["accuracy"] for line in lines["validator-0"] if line["event"] == "evaluation"]
        assert len(accuracy) == 8
        assert accuracy[-1] > 0.9


pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here"),
    pytest.mark.usefixtures("starts_processes"),
]


def test_mpi_takes_device_memory_or_the_trial_says_why_not():
    found = try_device_memory(detect_mpi())
    assert found == ACCEPTED or found.startswith("through MPI: ")


def test_vectors_compute_as_arrays_do():
    device, a = open_device(), np.arange(1000, dtype=np.float32) / 7
    there, out = device.allocate(1000), device.allocate(1000)
    there[:], out[:] = a, there
    out -= there[:]
    out[10:20] = 3
    np.add(there[:10], out[10:20], out=out[:10])
    here = np.zeros(1000, np.float32)
    here[10:20] = 3
    here[:10] = a[:10] + 3
    assert (on_host(out) == here).all()


ALONE = ("train.mode=async", "topology.workers=1")
"""Asynchronous, with one worker, so that the order of arrivals is always the same."""
SETTINGS = {
    "zeno++": ALONE,
    "dc_asgd": (*ALONE, "train.local_steps=1", "train.optimizer={name='sgd', lr=0.01, momentum=0.0}"),
}


@pytest.mark.parametrize("rule", ["average", "zeno", "krum", *SETTINGS])
def test_runs_with_direct_buffers_give_the_model_of_staged_up_to_rounding(tmp_path, rule):
    models, modes = {}, ["staged"] + ["direct"] * (try_device_memory(detect_mpi()) == ACCEPTED)
    file = tmp_path / "buffers.toml"
    file.write_text(
        f'name = "buffers"\n[topology]\nvalidators = 1\nworkers = 4\n[model]\nname = "mlp"\n[data]\nname = "digits"\n'
        f'[train]\nepochs = 1\nbatch_size = 16\nlocal_steps = 2\ndevice = "cuda"\n[train.optimizer]\nlr = 0.01\n'
        f'[communication]\nskip_rate = 0.2\n[validation.rule]\nkind = "{rule}"\n'
        + ("f = 0\n" if rule == "krum" else "")
    )
    for mode in modes:
        results = tmp_path / mode
        command = [sys.executable, "-m", "hpcps", "run", str(file), "--results", str(results)]
        settings = (f"transport.device_buffers={mode}", *SETTINGS.get(rule, ()))
        command += [word for setting in settings for word in ("--set", setting)]
        done = subprocess.run(command, env={**os.environ}, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        (folder,) = results.glob("*/runs/*")
        start = json.loads((folder / "records/worker-0.jsonl").read_text().partition("\n")[0])
        assert start["device_buffers"] == mode
        models[mode] = np.load(folder / "final/server-0.npy")
    for mode in modes[1:]:
        np.testing.assert_allclose(models[mode], models["staged"], rtol=1e-3, atol=1e-4)
