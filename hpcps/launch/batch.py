"""Batch systems, PBS and Slurm: the job that this process belongs to, its hosts, and how commands reach them."""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcps.errors import LaunchError
from hpcps.launch.bounded import ask
from hpcps.launch.detect import known_launchers
from hpcps.launch.hostfile import Host, read_hostfile

_SUBMIT = {"qsub": "PBS", "sbatch": "Slurm"}

PBS_HOSTS = "PBS_NODEFILE"
"""The variable with the path of the host file of a PBS job: a line for each MPI process of a chunk."""

_PBS_JOB, _SLURM_JOB = "PBS_JOBID", "SLURM_JOB_ID"


@dataclass(frozen=True)
class Allocation:
    """A batch job.

    Attributes:
        system: the batch system; empty outside of a job.
        job: the id of the job.
        hosts: its hosts; empty if they are not known.
        problem: why the hosts are not known.
        commands: the commands on PATH that submit jobs.
    """

    system: str = ""
    job: str = ""
    hosts: tuple[Host, ...] = ()
    problem: str = ""
    commands: tuple[str, ...] = ()

    def data(self) -> dict[str, Any]:
        """Return it as JSON values."""
        return {**asdict(self), "hosts": [{"name": host.name, "slots": host.slots} for host in self.hosts]}

    @property
    def text(self) -> str:
        """A description for people."""
        if not self.system:
            there = ", ".join(self.commands)
            return f"no job ({there} {'is' if len(self.commands) == 1 else 'are'} here)" if there else "none"
        hosts = ", ".join(f"{host.name}:{host.slots}" for host in self.hosts)
        return f"{self.system} job {self.job}; " + (f"hosts {hosts}" if hosts else self.problem)


def allocation(seconds: float, environment: Mapping[str, str] = os.environ) -> Allocation:
    """Find the batch job from the environment.

    Args:
        seconds: the deadline of `scontrol`, which knows the names of Slurm's hosts.
        environment: the environment variables.
    """
    commands = tuple(name for name in _SUBMIT if shutil.which(name, path=environment.get("PATH")))
    if job := environment.get(_PBS_JOB):
        hosts, problem = _pbs_hosts(environment.get(PBS_HOSTS))
        return Allocation("PBS", job, hosts, problem, commands)
    if job := environment.get(_SLURM_JOB):
        hosts, problem = _slurm_hosts(environment.get("SLURM_JOB_NODELIST"), seconds)
        return Allocation("Slurm", job, hosts, problem, commands)
    for launcher in known_launchers():
        for name in launcher.job_variables:
            if job := environment.get(name):
                return Allocation(launcher.name, job, (), "hpcps does not know its hosts: use --hostfile", commands)
    return Allocation(commands=commands)


def _pbs_hosts(nodefile: str | None) -> tuple[tuple[Host, ...], str]:
    if not nodefile:
        return (), "PBS_NODEFILE is not set: a job that PBS starts has it"
    try:
        return read_hostfile(Path(nodefile)), ""
    except LaunchError as error:
        return (), str(error)


def _slurm_hosts(nodes: str | None, seconds: float) -> tuple[tuple[Host, ...], str]:
    if not nodes:
        return (), "SLURM_JOB_NODELIST is not set: a job that Slurm starts has it"
    answer = ask(["scontrol", "show", "hostnames", nodes], seconds)
    if answer.problem:
        return (), f"`scontrol show hostnames {nodes}` {answer.problem}"
    return tuple(Host(name, count) for name, count in Counter(answer.output.split()).items()), ""


def job_id(environment: Mapping[str, str] = os.environ) -> str:
    """Return the id of the batch job of this process; empty outside of a job."""
    variables = [_PBS_JOB, *(name for launcher in known_launchers() for name in launcher.job_variables)]
    return next((environment[name] for name in variables if environment.get(name)), "")


def remote_agent(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the program that starts commands on other hosts of a batch job for launchers that cannot, else None.

    The MPICH wheel does not support PBS, and compute nodes often refuse ssh; `pbs_tmrsh` starts commands through PBS.
    """
    if PBS_HOSTS not in environment:
        return None
    places = [Path(environment.get("PBS_EXEC", "/opt/pbs")) / "bin" / "pbs_tmrsh", shutil.which("pbs_tmrsh")]
    if not any(place and os.access(place, os.X_OK) for place in places):
        return None
    return Path(__file__).parent / "pbs_agent.sh"
