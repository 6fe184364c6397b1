"""MXNet trains behind every transport, through `hpcps run` of its own environment, and each gives the same model."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.usefixtures("starts_processes")

ROOT = Path(__file__).parents[2]
HPCPS = ROOT / ".venv-mxnet/bin/hpcps"
ZENO = "11"
SMALLER = ("train.epochs=1", "topology.servers=2", "topology.workers=2", "data.limit=200", "data.test_limit=100")


@pytest.fixture(scope="module")
def final_model(tmp_path_factory):
    """Return a function that plays the quickstart of MXNet, made smaller, over a transport."""
    if not HPCPS.exists():
        if "CI" in os.environ:
            pytest.fail(".venv-mxnet is missing: `make mxnet-env` makes it")
        pytest.skip(".venv-mxnet is missing: `make mxnet-env` makes it")

    def play(transport, point, *changes):
        results = tmp_path_factory.mktemp(transport)
        words = [word for change in (*SMALLER, f"transport.kind={transport}", *changes) for word in ("--set", change)]
        command = [HPCPS, "run", "experiments/quickstart_mxnet.toml", "--only", point, "--results", results, *words]
        variables = {**os.environ, "PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stdout + done.stderr
        return np.concatenate([np.load(next(results.rglob(f"final/server-{s}.npy"))) for s in range(2)])

    return play


@pytest.mark.soak
def test_a_run_over_mpi_gives_the_model_of_one_process(final_model):
    here = final_model("inproc", ZENO)
    assert np.isfinite(here).all()
    assert here.tobytes() == final_model("mpi", ZENO).tobytes()


@pytest.mark.soak
def test_it_trains_asynchronously_over_ps_lite(final_model):
    changes = ("train.mode=async", "validation.rule.kind=zeno++", "train.epochs=2")
    assert np.isfinite(final_model("pslite", "random 1", *changes)).all()
