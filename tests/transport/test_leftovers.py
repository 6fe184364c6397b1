"""A rank that is killed leaves nothing in `/dev/shm`, of no MPI."""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("starts_processes")

ROOT = Path(__file__).parents[2]
MORE = {
    ".venv": {},
    ".venv-openmpi": {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    ".venv-intel": {},
}


@pytest.mark.parametrize("environment", MORE)
def test_no_shared_memory_is_left_behind(environment):
    folder = ROOT / environment / "bin"
    if not (folder / "mpirun").exists():
        if "CI" in os.environ or environment == ".venv":
            pytest.fail(f"{environment} is missing: `make test-all` makes it")
        pytest.skip(f"{environment} is missing: `make test-all` makes it")
    rank = (str(folder / "python"), "-m", "mpi4py", str(Path(__file__).with_name("murdered.py")))
    oversubscribed = ("--map-by", ":OVERSUBSCRIBE") if environment == ".venv-openmpi" else ()
    variables = {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), **MORE[environment]}
    command = [str(folder / "mpirun"), *oversubscribed, "-n", "3", *rank]
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=100)
    assert done.returncode != 0
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("MAPPED")]
    mapped = line.split()[1:]
    assert mapped, "it maps some memory of MPI's own"
    assert not [name for name in mapped if os.path.exists(name)]
