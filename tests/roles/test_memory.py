"""How much memory a round takes over a real mpirun, where payloads travel as messages."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpcps.spec.schema import Run

pytestmark = pytest.mark.usefixtures("starts_processes")

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
WORKERS = 4


def growth(folder, partition):
    """Play two rounds; return how many models of memory each role took at most."""
    run = Run.model_validate(
        {
            "name": "memory",
            "topology": {"servers": 1, "validators": 1, "workers": WORKERS},
            "model": {"name": "mlp"},
            "data": {"name": "synthetic"},
            "train": {"epochs": 2, "batch_size": 1},
            "validation": {"rule": {"kind": "zeno"}},
            "transport": {"partition": partition},
        }
    )
    mpirun = Path(sys.executable).parent / "mpirun"
    words = [str(mpirun), "-n", str(WORKERS + 2), sys.executable, "-m", "mpi4py"]
    played = subprocess.run(
        [*words, str(HERE / "exchange_rank.py"), run.model_dump_json(), str(folder)],
        capture_output=True, text=True, timeout=120, env={**os.environ, "PYTHONPATH": f"{ROOT}:{HERE.parent}"},
    )  # fmt: skip
    assert played.returncode == 0, played.stdout + played.stderr
    grew = {}
    for note in folder.glob("grew-*"):
        role = note.name.split("-")[1]
        grew[role] = max(grew.get(role, 0.0), float(note.read_text()))
    return grew


def test_a_combiner_never_holds_all_updates(tmp_path):
    grew = growth(tmp_path, 1 << 18)
    # A server has this model, the next one, and at first the initial one in its message; a validator its base, its
    # network, its own update, what it combines and the model that comes. Besides, four workers' windows are a quarter
    # of a model, and MPI has two or three of its own. A validator that holds whole updates has eleven.
    assert grew["validator"] < 9, grew
    assert grew["server"] < 7, grew
