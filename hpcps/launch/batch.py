"""Batch systems, PBS and Slurm: the job of this process, its hosts and walltime, and the jobs that continue its run."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hpcps.errors import LaunchError
from hpcps.inputs import whole_number
from hpcps.launch.bounded import ask
from hpcps.launch.detect import known_launchers
from hpcps.launch.hostfile import Host, gpu_ids, read_hostfile
from hpcps.launch.local_rank import VISIBLE
from hpcps.registry.config import MOST

_SUBMIT = {"qsub": "PBS", "sbatch": "Slurm"}

PBS_HOSTS = "PBS_NODEFILE"
"""The variable with the path of the host file of a PBS job: a line for each MPI process of a chunk."""

_PBS_JOB, _SLURM_JOB = "PBS_JOBID", "SLURM_JOB_ID"
_CLOCK = re.compile(r"(?:(\d{1,9})-)?(?:(\d{1,9}):)?(\d{1,9}):(\d{1,9})")
_TASKS = re.compile(r"(\d{1,6})(?:\(x(\d{1,6})\))?")
_PREDECESSORS = "HPCPS_SUCCESSOR"

CONTAINER = "HPCPS_CONTAINER"
"""The variable with the folder of the scripts with which a job enters its container; `launcher/job.sh` writes them."""

SITE_GPUS = "HPCPS_GPUS"
"""The variable in which a site names the GPUs of each host, such as `0,1`, where no batch system says how many."""


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
        gpus = [host.gpu_count or list(host.gpus) or None for host in self.hosts]
        hosts = [
            {"name": host.name, "slots": host.slots, "gpus": known}
            for host, known in zip(self.hosts, gpus, strict=True)
        ]
        return {**asdict(self), "hosts": hosts}

    @property
    def text(self) -> str:
        """A description for people."""
        if not self.system:
            there = ", ".join(self.commands)
            return f"no job ({there} {'is' if len(self.commands) == 1 else 'are'} here)" if there else "none"
        hosts = ", ".join(f"{host.name}:{host.slots}{_gpus_text(host)}" for host in self.hosts)
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
        return Allocation("PBS", job, with_gpus(hosts, seconds, environment), problem, commands)
    if job := environment.get(_SLURM_JOB):
        hosts, problem = _slurm_hosts(environment, seconds)
        return Allocation("Slurm", job, with_gpus(hosts, seconds, environment), problem, commands)
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


def _slurm_hosts(environment: Mapping[str, str], seconds: float) -> tuple[tuple[Host, ...], str]:
    nodes = environment.get("SLURM_JOB_NODELIST")
    if not nodes:
        return (), "SLURM_JOB_NODELIST is not set: a job that Slurm starts has it"
    answer = ask(["scontrol", "show", "hostnames", nodes], seconds)
    if answer.problem:
        return (), f"`scontrol show hostnames {nodes}` {answer.problem}"
    names = answer.output.split()
    slots = _slurm_slots(environment)
    if len(slots) != len(names):
        return tuple(Host(name, count) for name, count in Counter(names).items()), ""
    return tuple(map(Host, names, slots)), ""


def _slurm_slots(environment: Mapping[str, str]) -> list[int]:
    """Return the tasks of each node of the job; empty if it asked for no number of tasks.

    SLURM_TASKS_PER_NODE, such as `2(x3),1`, is always set; in a job without a number of tasks it counts cores.
    """
    if not (environment.get("SLURM_NTASKS") or environment.get("SLURM_NTASKS_PER_NODE")):
        return []
    parts = [_TASKS.fullmatch(part) for part in environment.get("SLURM_TASKS_PER_NODE", "").split(",")]
    if not all(parts):
        return []
    return [int(part[1]) for part in parts if part for _ in range(int(part[2] or 1))]


def with_gpus(hosts: tuple[Host, ...], seconds: float, environment: Mapping[str, str] = os.environ) -> tuple[Host, ...]:
    """Return the hosts of a launch with their GPUs.

    GPUs that the host file names stay. Other hosts get the number of GPUs that the batch job has on them: `ngpus` of
    the chunks of PBS, the GPUs of a node of Slurm, else those that CUDA_VISIBLE_DEVICES names in this process. Without
    any of these, HPCPS_GPUS of the site names the GPUs of each host.

    Args:
        hosts: the hosts.
        seconds: the deadline of a command of the batch system.
        environment: the variables of the job.
    """
    if all(host.names_gpus for host in hosts):
        return hosts
    counts: Mapping[str, int] = {}
    if job := environment.get(_PBS_JOB):
        counts = _pbs_gpus(job, seconds) or _on_each(hosts, _visible(environment))
    elif job := environment.get(_SLURM_JOB):
        each = whole_number(environment.get("SLURM_GPUS_ON_NODE", ""), 1, MOST) or _visible(environment)
        counts = _slurm_gpus(job, seconds) or _on_each(hosts, each)
    named = _site_gpus(environment) if not counts else ()
    found = []
    for host in hosts:
        count = 0 if host.names_gpus else counts.get(_short(host.name), 0)
        found.append(replace(host, gpu_count=count) if count else host)
        if named and not host.names_gpus:
            found[-1] = replace(host, gpus=named)
    return tuple(found)


def own_gpus(hosts: tuple[Host, ...], environment: Mapping[str, str]) -> tuple[Host, ...]:
    """Return this machine with the GPUs that CUDA_VISIBLE_DEVICES names, else those of HPCPS_GPUS."""
    count, named = _visible(environment), _site_gpus(environment)
    return tuple(replace(host, gpu_count=count) if count else replace(host, gpus=named) for host in hosts)


def _on_each(hosts: tuple[Host, ...], count: int) -> dict[str, int]:
    return {_short(host.name): count for host in hosts} if count else {}


def _visible(environment: Mapping[str, str]) -> int:
    """Return the number of GPUs that CUDA shows to this process; 0 if CUDA_VISIBLE_DEVICES does not say."""
    ids = environment.get(VISIBLE, "")
    return 0 if ids in ("", "-1", "NoDevFiles") else len(ids.split(","))


def _site_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    text = environment.get(SITE_GPUS, "")
    try:
        return gpu_ids(text) if text else ()
    except ValueError as error:
        raise LaunchError(f"{SITE_GPUS} = {text[:60]!r}: {error}; several are separated by commas: 0,1") from None


def _pbs_gpus(job: str, seconds: float) -> dict[str, int]:
    """Return the GPUs of each host of a job of PBS; empty if it has none, or qstat does not say."""
    answer = ask(["qstat", "-f", job], seconds)
    text = answer.output.replace("\n\t", "")
    values = dict(re.findall(r"^ *(exec_host|exec_vnode) = (\S+)", text, re.MULTILINE))
    chunks = re.findall(r"\(([^)]*)\)", values.get("exec_vnode", ""))
    hosts = [chunk.partition("/")[0] for chunk in values.get("exec_host", "").split("+")]
    counts: Counter[str] = Counter()
    for host, chunk in zip(hosts, chunks, strict=False):
        counts[_short(host)] += sum(map(int, re.findall(r":ngpus=(\d{1,9})", chunk)))
    return {host: count for host, count in counts.items() if count}


def _slurm_gpus(job: str, seconds: float) -> dict[str, int]:
    """Return the GPUs of each node of a job of Slurm; empty if it has none, or scontrol does not say."""
    answer = ask(["scontrol", "show", "job", "-d", job], seconds)
    counts: dict[str, int] = {}
    for nodes, resources in re.findall(r"^ +Nodes=(\S+) .*\bGRES=(\S+)", answer.output, re.MULTILINE):
        # Several types of GPUs are several resources: gpu:a100:2(IDX:0-1),gpu:h100:1(IDX:2)
        count = sum(map(int, re.findall(r"\bgpu:(?:[^:,(]+:)?(\d{1,9})\b", resources)))
        names = ask(["scontrol", "show", "hostnames", nodes], seconds).output.split() if count else []
        counts |= {_short(name): count for name in names}
    return counts


def _short(name: str) -> str:
    return name.lower().partition(".")[0]


def _gpus_text(host: Host) -> str:
    if host.gpus:
        return f" (GPUs {','.join(host.gpus)})"
    return f" ({host.gpu_count} GPU{'s' * (host.gpu_count != 1)})" if host.gpu_count else ""


def job_id(environment: Mapping[str, str] = os.environ) -> str:
    """Return the id of the batch job of this process; empty outside of a job."""
    variables = [_PBS_JOB, *(name for launcher in known_launchers() for name in launcher.job_variables)]
    return next((environment[name] for name in variables if environment.get(name)), "")


def remote_agent(environment: Mapping[str, str] = os.environ) -> Path | None:
    """Return the program that starts commands on other hosts of a batch job for launchers that cannot, else None.

    The MPICH wheel does not support PBS, and compute nodes often refuse ssh; `pbs_tmrsh` starts commands through PBS.
    In a job with a container, the command is executed in the container.
    """
    if environment.get(CONTAINER):
        return Path(__file__).parent / "container_agent.sh"
    if PBS_HOSTS not in environment:
        return None
    places = [Path(environment.get("PBS_EXEC", "/opt/pbs")) / "bin" / "pbs_tmrsh", shutil.which("pbs_tmrsh")]
    if not any(place and os.access(place, os.X_OK) for place in places):
        return None
    return Path(__file__).parent / "pbs_agent.sh"


def interpreter(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the Python of the processes of a launch, on every host: that of the job's container, else this one.

    In a container, it is a script of the job that enters the container first where a launcher starts it outside.
    """
    folder = environment.get(CONTAINER)
    return Path(folder) / "python" if folder else Path(sys.executable)


def host_agent(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the program that starts a command on another host: that of the batch job, else ssh.

    In a job of Slurm, `srun` does, because nodes may refuse ssh; Slurm's own launchers need no agent.
    """
    if environment.get(_SLURM_JOB) and shutil.which("srun", path=environment.get("PATH")):
        return Path(__file__).parent / "slurm_agent.sh"
    return remote_agent(environment) or Path("ssh")


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


def last_moment(walltime: float, margin: float, key: str, where: str = "") -> float:
    """Return the time on the monotonic clock at which to stop so that a job ends within its walltime.

    Args:
        walltime: the remaining seconds of the job.
        margin: the seconds that the stop may take.
        key: the key or the option with the margin.
        where: how to set it.

    Raises:
        LaunchError: no time remains before the stop.
    """
    if walltime <= margin:
        raise LaunchError(
            f"--walltime of {walltime:g} s leaves no time to train: a run stops {key} = {margin:g} s before its end; "
            f"use a longer walltime, or a smaller {key}{where}"
        )
    return time.monotonic() + walltime - margin


def predecessors(environment: Mapping[str, str] = os.environ) -> int:
    """Return the number of earlier jobs in the chain of this job, from `HPCPS_SUCCESSOR`."""
    text = environment.get(_PREDECESSORS, "0")
    return whole_number(text, 0, MOST) or 0


def may_go_on(
    successors: int, environment: Mapping[str, str] = os.environ, option: str = "checkpoint.successors"
) -> str | None:
    """Return why no successor job may continue the run after this one; None if a successor is allowed.

    Args:
        successors: the number of successors that are allowed.
        environment: the environment of the job.
        option: the key or the option with this number.
    """
    before = predecessors(environment)
    if before < successors:
        return None
    return (
        f"{option} = {successors} allows no job after this one (number {before + 1} of its chain): run "
        "it again to go on"
    )
