"""MPI that sends device memory: with UCX from PyPI, which replaces a UCX that cannot.

Distribution builds of MPI and the wheels of PyPI come with a UCX that has no CUDA module. The packages `libucx-cu13`
and `libucx-cu12` have it. Their library is found first if its folder is first in the library path of the ranks.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from hpcps.launch.launchers import Job, Launcher
from hpcps.launch.local_rank import DRIVER

if TYPE_CHECKING:
    from hpcps.spec.schema import Run

LOCAL_TRANSPORTS = "sm,self,cuda_copy,cuda_ipc"
"""UCX's transports between the processes of one host."""


def wanted(runs: Iterable[Run]) -> bool:
    """Return whether MPI may have to send device memory in a launch of these runs.

    `train.device = "auto"` counts only on a machine with NVIDIA's driver.
    """
    devices = {run.train.device for run in runs if run.transport.buffers != "staged"}
    return "cuda" in devices or ("auto" in devices and os.path.exists(DRIVER))


def find_ucx() -> Path | None:
    """Return the folder of the libraries of a UCX with CUDA in this environment; None if no such package is there."""
    found = find_spec("libucx")
    for folder in (found.submodule_search_locations or ()) if found else ():
        libraries = Path(folder) / "lib"
        if any((libraries / "ucx").glob("libuct_cuda.so*")):
            return libraries
    return None


def with_gpu_mpi(job: Job, launcher: Launcher, environment: Mapping[str, str] = os.environ) -> Job:
    """Return a job whose MPI sends device memory with the UCX of this environment; the same job without that package.

    Args:
        job: the job.
        launcher: the launcher that will start it, which knows the settings of its MPI.
        environment: the environment of this process; its library path comes after UCX, and its UCX_TLS counts.
    """
    libraries = find_ucx()
    if libraries is None:
        return job
    inherited = [path for path in environment.get("LD_LIBRARY_PATH", "").split(os.pathsep) if path]
    path = os.pathsep.join(dict.fromkeys([str(libraries), *inherited]))
    variables = {"LD_LIBRARY_PATH": path, "UCX_MODULE_DIR": str(libraries / "ucx")}
    if job.local and "UCX_TLS" not in environment:
        variables["UCX_TLS"] = LOCAL_TRANSPORTS
    return launcher.with_ucx(job, variables)
