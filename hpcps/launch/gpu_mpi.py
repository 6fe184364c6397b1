"""MPI that sends device memory: with UCX from PyPI, which replaces a UCX that cannot, and a trial of two ranks.

Distribution builds of MPI and the wheels of PyPI come with a UCX that has no CUDA module. The packages `libucx-cu13`
and `libucx-cu12` have it. Their library is found first if its folder is first in the library path of the ranks.

Two ranks try MPI: whether they reach each other, and whether MPI takes device memory. They are started by the launcher
that `hpcps run` uses, in the form that it uses. A wrong guess about device memory crashes a rank of the pair, not the
run.
"""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hpcps
from hpcps.errors import InputError, LaunchError
from hpcps.inputs import MiB, read_json
from hpcps.launch.bounded import ask
from hpcps.launch.detect import Mpi
from hpcps.launch.launchers import Job, Launch, Launcher
from hpcps.launch.launchers.job import refuse_special_characters
from hpcps.launch.local_rank import DRIVER
from hpcps.launch.plan import ACCEPTED, UNTRIED, Plan, Rank
from hpcps.spec.device_buffers import unsuitable
from hpcps.transport.device import absence

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


DEADLINE = 60.0
"""Seconds for a pair; a loaded machine takes some seconds to start processes that load a driver."""


@dataclass
class DeviceTrials:
    """The trials of device memory of one `hpcps run`, which makes each of them once."""

    _through_mpi: dict[tuple[str, str], str] = field(default_factory=dict)

    def device_memory(self, runs: Sequence[Run], launch: Launch, launcher: Launcher) -> str:
        """Return the `Plan.device_memory` of a launch of some runs.

        Two ranks try what the ranks of the launch will do, started by its launcher on its hosts: on two of them, and on
        one where several processes exchange memory.

        Args:
            runs: the runs, which share the settings of their transport.
            launch: the launch.
            launcher: the launcher that has rendered it.
        """
        world = launch.job.plan.world
        devices = {run.train.device for run in runs if not unsuitable(run) and run.transport.buffers == "auto"}
        remote = not all(rank.host == "localhost" for rank in world)
        # A host without a device may start a launch on hosts with devices, which only train.device = "cuda" tells.
        if not devices or (absence() and not (remote and "cuda" in devices)):
            return UNTRIED
        counts = Counter(rank.host for rank in world if rank.role not in ("adversary", "evaluator"))
        hosts = list(counts)
        pairs = [(hosts[0], hosts[-1])] if len(hosts) > 1 else []
        pairs += [(host, host) for host in hosts if counts[host] > 1][:1]
        for pair in pairs:
            if pair not in self._through_mpi:
                self._through_mpi[pair] = _try_on(pair, launch.job, launcher)
            if self._through_mpi[pair] != ACCEPTED:
                return self._through_mpi[pair]
        return ACCEPTED


def try_device_memory(mpi: Mpi) -> str:
    """Return `ACCEPTED` if two ranks of this host can exchange device memory through MPI; else why not."""
    if reason := absence():
        return f"through MPI: {reason}"
    return _result("", *start_pair(mpi, DEADLINE, device=True))


def _try_on(hosts: tuple[str, str], job: Job, launcher: Launcher) -> str:
    """Return `ACCEPTED` if ranks of a job can exchange device memory between two hosts, or on one; else why not."""
    world = tuple(Rank(rank, "worker", rank, host) for rank, host in enumerate(hosts))
    where = " between {} and {}".format(*hosts) if hosts[0] != hosts[1] else ""
    # In a folder of the launch, which all of its hosts can read.
    folder = job.plan_file.parent / f"trial-{'-'.join(dict.fromkeys(hosts))}"
    pair = replace(job, plan=replace(job.plan, world=world, runs=()))
    return _result(where, *_started(pair, launcher, folder, DEADLINE, device=True))


def _result(where: str, found: dict[str, Any], problem: str) -> str:
    if not problem and found.get("device") is True:
        return ACCEPTED
    return f"through MPI{where}: {problem or found.get('device') or 'the memory came back changed'}"


def start_pair(mpi: Mpi, seconds: float, *, device: bool = False) -> tuple[dict[str, Any], str]:
    """Start two ranks of `doctor.ranks` on this machine.

    Args:
        mpi: the launcher.
        seconds: the deadline.
        device: whether they exchange device memory.

    Returns:
        The result of rank 0, and what is wrong; an empty text if nothing is.
    """
    plan = Plan((Rank(0, "worker", 0, "localhost"), Rank(1, "worker", 1, "localhost")), ())
    with tempfile.TemporaryDirectory(prefix="hpcps-doctor-") as name:
        folder = Path(name)
        files, cure = (folder / "plan.json", folder / "conf"), "set TMPDIR to a folder without them"
        job = Job(plan, *files, mpi.mpirun, Path(sys.executable), elsewhere=cure)
        job = with_gpu_mpi(job, mpi.launcher) if device else job
        return _started(job, mpi.launcher, folder / "trial", seconds, device)


def _started(job: Job, launcher: Launcher, folder: Path, seconds: float, device: bool) -> tuple[dict[str, Any], str]:
    """Start the ranks of a job in place of its program; make and remove a folder that all of its hosts can read."""
    try:
        # The ranks are started with another interpreter and another plan, whose paths have other characters.
        refuse_special_characters(job)
        folder.mkdir(parents=True)
        return _start(job, launcher, folder, seconds, device)
    except LaunchError as error:
        return {}, str(error)
    except OSError as error:
        return {}, f"{folder} cannot be written: {error.strerror}"
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _start(job: Job, launcher: Launcher, folder: Path, seconds: float, device: bool) -> tuple[dict[str, Any], str]:
    mpirun, result, program = job.mpirun, folder / "result.json", folder / "rank"
    # The launcher starts this instead of the interpreter, so the file has the format of a real launch.
    words = [str(job.python), "-m", "mpi4py", "-m", "hpcps.launch.doctor.ranks", str(result), str(int(seconds))]
    words += ["device"] if device else []
    root = shlex.quote(str(Path(hpcps.__file__).parent.parent))
    path = f"PYTHONPATH={root}${{PYTHONPATH:+:$PYTHONPATH}}"
    program.write_text(f"#!/bin/sh\n{path} exec {shlex.join(words)}\n")
    program.chmod(0o700)
    launch = launcher.launch_of(
        replace(job, plan_file=folder / "plan.json", configfile=folder / "conf", python=program)
    )
    launch.write()
    answer = ask(launch.command, seconds, launch.environment())
    try:
        found = read_json(result, MiB)
    except InputError:
        found = None
    if not isinstance(found, dict):
        return {}, f"{mpirun.name} {answer.problem or 'starts no ranks'}"
    if found.get("size") != 2:
        return found, (
            f"{mpirun} starts {found.get('size')} rank instead of 2: it belongs to another MPI than the library "
            f"that mpi4py loads ({found.get('library')})"
        )
    return found, f"{mpirun.name} {answer.problem}" if answer.problem else ""
