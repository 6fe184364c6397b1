"""Batch systems, PBS and Slurm: the job of this process, its hosts and walltime, and the jobs that continue its run."""

from __future__ import annotations

import argparse
import os
import re
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpcps.errors import LaunchError
from hpcps.inputs import whole_number
from hpcps.launch.bounded import ask
from hpcps.launch.detect import known_launchers
from hpcps.launch.hostfile import Host, read_hostfile
from hpcps.registry.config import MOST

_SUBMIT = {"qsub": "PBS", "sbatch": "Slurm"}

PBS_HOSTS = "PBS_NODEFILE"
"""The variable with the path of the host file of a PBS job: a line for each MPI process of a chunk."""

_PBS_JOB, _SLURM_JOB = "PBS_JOBID", "SLURM_JOB_ID"
_CLOCK = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})")
_PREDECESSORS = "HPCPS_SUCCESSOR"


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


def helper_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables for a launcher that starts a helper on each host through the batch system of this job.

    Hydra and Intel MPI start it with `srun`, which may bind it, and so all ranks of the host, to one core.
    """
    return {"SLURM_CPU_BIND": "none"} if environment.get(_SLURM_JOB) else {}


def seconds(text: str) -> float:
    """Read a time as batch systems write it: seconds, MM:SS, HH:MM:SS or D-HH:MM:SS.

    Raises:
        argparse.ArgumentTypeError: the text is not a time.
    """
    if text.isascii() and text.isdigit():
        text = f"0:{text}"
    found = _CLOCK.fullmatch(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: give seconds, or HH:MM:SS")
    days, hours, minutes, rest = (int(part or 0) for part in found.groups())
    return float(((days * 24 + hours) * 60 + minutes) * 60 + rest)


def predecessors(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of earlier jobs in the chain of this job, from `HPCPS_SUCCESSOR`."""
    text = environment.get(_PREDECESSORS, "0")
    return whole_number(text, 0, MOST) or 0


def may_go_on(successors: int, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return why no successor job may continue the run after this one; None if a successor is allowed.

    Args:
        successors: the number of successors that the experiment allows.
        environment: the environment of the job.
    """
    before = predecessors(environment)
    if before < successors:
        return None
    return (
        f"checkpoint.successors = {successors} allows no job after this one (number {before + 1} of its chain): run "
        "it again to go on"
    )
