"""What `import hpcps` offers: fast, without MPI and frameworks, and typed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import hpcps

ROOT = Path(__file__).parents[2]

SCRIPT = """
import numpy as np
import pandas as pd

import hpcps

experiment: hpcps.Experiment = hpcps.load("experiment.toml", set={"train.epochs": 2}, only="zeno")
ids: tuple[str, ...] = experiment.check().ids


def on_round(report: hpcps.RoundReport) -> None:
    accepted: int | None = report.accepted
    print(report.version, accepted, float(report.model[0]))


def on_evaluation(report: hpcps.EvaluationReport) -> None:
    print(report.epoch, report.accuracy)


try:
    done = hpcps.run(experiment, callbacks=hpcps.Callbacks(on_round, on_evaluation), progress=False)
except (hpcps.SpecError, hpcps.RunError) as error:
    print(error)
else:
    table: pd.DataFrame = done.table(events=["evaluation"])
    model = done.final_model(ids[0]).astype(np.float64)
everything: pd.DataFrame = hpcps.results("mine")
combined = hpcps.registry.rules["trimmed_mean"](trim=0.2)(np.zeros((5, 3)))
same = hpcps.rules.TrimmedMean(trim=0.2)(np.zeros((5, 3)))
attacked = hpcps.attacks.Negative(scale=6.0)(combined)
names: list[str] = list(hpcps.registry.models)
learner = hpcps.Learner("mlp", "digits", batch_size=32, lr=0.1)
loss: float = learner.train(10).loss
accuracy: float = learner.evaluate().accuracy
learner.model = learner.model * 0.5
"""
WRONG = """
import hpcps

hpcps.lode("experiment.toml")
hpcps.run("experiment.toml", callback=None)
hpcps.Learner("mlp", "digits", batch_size="32")
count: int = hpcps.load("experiment.toml").ids
"""


@pytest.mark.usefixtures("starts_processes")
def test_the_import_is_light():
    code = (
        "import hpcps, sys; "
        "print(sorted({'torch', 'mpi4py', 'numpy', 'pandas', 'pydantic', 'hpcps.spec'} & set(sys.modules)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert done.stdout == "[]\n"


@pytest.mark.usefixtures("starts_processes")
def test_loading_needs_no_framework():
    code = (
        "import sys, hpcps; hpcps.load('experiments/quickstart.toml'); hpcps.rules.Average()([[1.0]]); "
        "print([m for m in ('torch', 'mpi4py', 'pandas', 'matplotlib') if m in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment, cwd=ROOT
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


def test_every_name_is_there():
    assert set(hpcps.__all__) <= set(dir(hpcps))
    for name in hpcps.__all__:
        assert getattr(hpcps, name).__doc__, name


@pytest.mark.usefixtures("starts_processes")
def test_a_user_script_is_typed(tmp_path):
    """One call of mypy, which shares the cache of `make check`."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "wrong.py").write_text(WRONG)
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--config-file", ROOT / "pyproject.toml", "script.py", "wrong.py"],
        capture_output=True, text=True, cwd=tmp_path, check=False,
        env={**os.environ, "MYPYPATH": str(ROOT), "MYPY_CACHE_DIR": str(ROOT / ".mypy_cache")},
    )  # fmt: skip
    lines = [line for line in done.stdout.splitlines() if "error:" in line]
    assert [line.partition(" error: ")[0] for line in lines] == [f"wrong.py:{number}:" for number in (4, 5, 6, 7)], (
        done.stdout + done.stderr
    )
