"""Asynchronous training over real MPI, far more processes than cores: 30 workers, random delays, 10,000 updates."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "asynchronous"))
from stress import stressed
from test_stress import DELAY, check
from toy_trainers import Played

pytestmark = pytest.mark.soak
ASYNCHRONOUS = Path(__file__).parents[1] / "asynchronous"
SHAPE = (3, 2, 30)
BLOCKS, REFRESHES = 500, 800


@pytest.mark.parametrize("per_refresh", ["queued", "share"])
def test_every_update_is_applied_once_or_rejected(tmp_path, per_refresh):
    mpirun = Path(sys.executable).with_name("mpirun")
    launcher = str(mpirun) if mpirun.exists() else shutil.which("mpirun")
    if launcher is None:
        pytest.skip("there is no mpirun")
    command = [launcher, "-n", str(sum(SHAPE)), sys.executable, "-m", "mpi4py", str(ASYNCHRONOUS / "stress.py")]
    arguments = [str(tmp_path), *map(str, SHAPE), str(2 * REFRESHES), per_refresh, str(BLOCKS)]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=1700)
    assert done.returncode == 0, done.stderr
    run = stressed(*SHAPE, 2 * REFRESHES, per_refresh, DELAY)
    updates = check(Played(tmp_path, run), run, BLOCKS)
    print(f"{updates} updates")
    assert updates >= 10_000
    assert np.isfinite(Played(tmp_path, run).model).all()
