"""The batch job that this process belongs to, and its hosts."""

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
    if job := environment.get("PBS_JOBID"):
        hosts, problem = _pbs_hosts(environment.get("PBS_NODEFILE"))
        return Allocation("PBS", job, hosts, problem, commands)
    if job := environment.get("SLURM_JOB_ID"):
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
