"""What a process says that cannot join the others."""

import os
import subprocess
import sys

import pytest

from hpcps.launch.plan import Plan, PlannedRun, Rank

pytestmark = pytest.mark.usefixtures("starts_processes")


def test_a_missing_mpi_library_is_an_error_without_a_traceback(tmp_path):
    plan = tmp_path / "conf.plan.json"
    planned = PlannedRun("0123456789", "one", str(tmp_path), {"run": {"transport": {"kind": "mpi", "timeout": 600.0}}})
    Plan((Rank(0, "worker", 0, "localhost"),), (planned,)).write(plan)
    done = subprocess.run(
        [sys.executable, "-m", "mpi4py", "-m", "hpcps.execution", str(plan)],
        capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path,
        env={**os.environ, "MPI4PY_LIBMPI": str(tmp_path / "libmpi.so")},
    )  # fmt: skip
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"mpi4py finds no MPI library: {tmp_path}/libmpi.so: cannot open shared object file" in done.stderr
    assert "'hpcps[mpich]'" in done.stderr
