"""A run over mpirun whose workers and validator train on a GPU, where there is one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

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
        trainees = {name for name in lines if not name.startswith("server")}
        assert {lines[name][0]["device"].partition(":")[0] for name in trainees} == {device}
        accuracy = [line["accuracy"] for line in lines["validator-0"] if line["event"] == "evaluation"]
        assert len(accuracy) == 8
        assert accuracy[-1] > 0.9
