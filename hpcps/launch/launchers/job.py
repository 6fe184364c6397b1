"""A job, and its form for one launcher: the files and the command."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from hpcps.errors import LaunchError
from hpcps.launch.ancestry import without_launch
from hpcps.launch.plan import Plan, Rank

MPICH_WITH_UCX = {"MPIR_CVAR_CH4_NETMOD": "ucx", "MPIR_CVAR_NOLOCAL": "1"}
"""Variables with which MPICH sends all through UCX, also within a host: its own shared memory is for host buffers."""
OPEN_MPI_WITH_UCX = {"pml": "ucx", "opal_common_ucx_tls": "any", "opal_common_ucx_devices": "any"}
"""Parameters with which Open MPI uses UCX, which it otherwise does only with certain networks."""

# Launchers treat quotes differently, and some split a line at every blank.
_PLAIN = re.compile(r"[\w./:@%+,=~-]+")


@dataclass(frozen=True)
class Job:
    """A plan, and what a launcher needs to start it.

    Attributes:
        plan: the rank, role and host of every process.
        plan_file: the path of the plan, the same on every host.
        configfile: the file to write; related files go into the same folder.
        mpirun: the launcher.
        python: the interpreter, on every host.
        variables: environment variables to set for every rank.
        options: further options for the launcher, as the site needs them.
        agent: the program that starts a command on another host instead of ssh; the launcher calls it like rsh. None:
            the launcher chooses.
        helper_variables: environment variables for a launcher that starts helpers on the hosts through the batch
            system.
        elsewhere: how a user chooses another folder for the plan, for the message about a special character in its
            path.
    """

    plan: Plan
    plan_file: Path
    configfile: Path
    mpirun: Path
    python: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    options: Sequence[str] = ()
    agent: Path | None = None
    helper_variables: Mapping[str, str] = field(default_factory=dict)
    elsewhere: str = "name a results folder without them (--results)"

    @property
    def local(self) -> bool:
        """Whether everything runs on this machine, without a host file."""
        return all(rank.host == "localhost" for rank in self.plan.world)

    @property
    def hosts_file(self) -> Path:
        """The file of hosts for launchers that read the hosts from a separate file."""
        return self.configfile.with_name(f"{self.configfile.name}.hosts")


@dataclass(frozen=True)
class Launch:
    """The files to write and the command to run.

    Attributes:
        job: the job that it starts.
        files: the texts to write, by absolute path, the configfile first; empty if the command contains everything.
        command: the launcher and its arguments.
        variables: environment variables that the launcher itself needs.
        needs_path: whether the folder of the launcher has to be on PATH; `environment` and `line` add it.
        stop_signal: the signal that the launcher forwards to the ranks and that stops them; `supervise` sends it.
    """

    job: Job
    files: Mapping[Path, str]
    command: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    needs_path: bool = False
    stop_signal: signal.Signals = signal.SIGTERM

    def write(self) -> None:
        """Write the plan, the configfile and the related files.

        Raises:
            LaunchError: a file cannot be written.
        """
        self.job.plan.write(self.job.plan_file)
        for path, text in self.files.items():
            try:
                path.write_text(text, encoding="utf-8")
            except OSError as error:
                raise LaunchError(f"{path} cannot be written: {error.strerror}") from error

    def environment(self) -> dict[str, str]:
        """Return the environment of the launcher, which may itself be started by a process of another launch."""
        environment = {**without_launch(os.environ), **self.variables}
        if self.needs_path:
            path = os.environ.get("PATH", os.defpath)
            environment["PATH"] = os.pathsep.join([str(self.job.mpirun.parent), path])
        return environment

    def summary(self, noun: str) -> str:
        """Return the names of the written files and the command; `noun` is the word for one run."""
        count, size = len(self.job.plan.runs) or 1, len(self.job.plan.world)
        files = ", ".join(map(str, [self.job.plan_file, *self.files]))
        return f"# {count} {noun}{'s' * (count > 1)} on {size} processes; wrote {files}\n{self.line}"

    @property
    def line(self) -> str:
        """The command as a shell command line."""
        settings = [shlex.quote(f"{name}={value}") for name, value in self.variables.items()]
        if self.needs_path:
            settings.append(f'PATH={shlex.quote(str(self.job.mpirun.parent))}:"$PATH"')
        return " ".join([*(["env", *settings] if settings else []), shlex.join(self.command)])


@dataclass(frozen=True)
class RankSegment:
    """Consecutive ranks with the same command: of one role and, if the launcher needs it, on one host."""

    first: int
    count: int
    role: str
    host: str

    @property
    def ranks(self) -> str:
        """The ranks as `first-last`, or the only rank."""
        return f"{self.first}-{self.first + self.count - 1}" if self.count > 1 else f"{self.first}"


def segments(plan: Plan, by_host: bool) -> list[RankSegment]:
    """Split the world into segments, in rank order."""

    def kind(rank: Rank) -> tuple[str, str]:
        return rank.role, rank.host if by_host else ""

    pieces = [(key, list(ranks)) for key, ranks in groupby(plan.world, kind)]
    return [RankSegment(ranks[0].rank, len(ranks), *key) for key, ranks in pieces]


def refuse_special_characters(job: Job) -> None:
    """Refuse paths and values that a launcher would split, quote or expand.

    Raises:
        LaunchError: a path or a value contains a blank or a special character.
    """
    # A symbolic link is no cure: the interpreter and the working folder report their physical paths.
    cures = {
        f"the interpreter {job.python}": "move the environment to a path without them",
        f"the plan {job.plan_file}": job.elsewhere,
    }
    for (what, cure), path in zip(cures.items(), (job.python, job.plan_file), strict=True):
        if not _PLAIN.fullmatch(str(path)):
            raise LaunchError(
                f"{what} has a blank or a special character in its path, which not every launcher passes on: {cure}"
            )
    for name, value in job.variables.items():
        if not _PLAIN.fullmatch(value):
            raise LaunchError(
                f"the environment variable {name} is {value!r}: not every launcher passes blanks and "
                "special characters on: move what it names to a path without them"
            )


def program(job: Job, role: str = "") -> str:
    """Return the command line of one rank; without a role, the rank takes its role from the plan."""
    settings = [f"{name}={value}" for name, value in job.variables.items()]
    # `-m mpi4py` ends the whole job when one rank fails. A rank of a script becomes the script.
    library = ["-m", "mpi4py"] if job.plan.mpi and job.plan.script is None else []
    module = "hpcps.execution" if job.plan.script is None else "hpcps.session"
    words = [*settings, str(job.python), *library, "-m", module, str(job.plan_file), role]
    return " ".join(word for word in (["env", *words] if settings else words) if word)


def one_segment(job: Job) -> str:
    """Return a configfile with one segment of all ranks, which take their roles from the plan."""
    return f"-n {len(job.plan.world)} {program(job)}\n"


def host_counts(job: Job) -> str:
    """Return the hosts as lines of `host:count`, in rank order."""
    return "".join(f"{host}:{len(list(ranks))}\n" for host, ranks in groupby(job.plan.world, lambda rank: rank.host))
