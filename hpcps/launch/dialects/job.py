"""What is launched, and what a dialect makes of it."""

from __future__ import annotations

import os
import re
import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from hpcps.errors import LaunchError
from hpcps.launch.plan import Plan, Rank

# No launcher agrees with another on quotes, and some split a line at any blank.
_PLAIN = re.compile(r"[\w./:@%+,=~-]+")


@dataclass(frozen=True)
class Job:
    """A plan, and what is needed to start it.

    Attributes:
        plan: who is where.
        plan_file: where the ranks find it, on every host.
        configfile: the file to write; companions go beside it.
        mpirun: the launcher.
        python: the interpreter, on every host.
        variables: what to set in the environment of every rank.
        options: further options for the launcher, as the site needs them.
        agent: what starts a program on another host in place of ssh, called like rsh; None to let the launcher choose.
    """

    plan: Plan
    plan_file: Path
    configfile: Path
    mpirun: Path
    python: Path
    variables: Mapping[str, str] = field(default_factory=dict)
    options: Sequence[str] = ()
    agent: Path | None = None

    @property
    def local(self) -> bool:
        """Whether everything runs on this machine, without a host file."""
        return all(rank.host == "localhost" for rank in self.plan.world)


@dataclass(frozen=True)
class Launch:
    """What to write and what to type.

    Attributes:
        job: what it starts.
        files: the texts to write, by absolute path: the configfile first; none where all is in the command.
        command: the launcher and its arguments.
        variables: what the launcher itself needs set.
        needs_path: whether its folder has to be on PATH.
        stop_signal: what the launcher passes on to the ranks so that they stop.
    """

    job: Job
    files: Mapping[Path, str]
    command: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    needs_path: bool = False
    stop_signal: signal.Signals = signal.SIGTERM

    def write(self) -> None:
        """Write the plan, the configfile and its companions.

        Raises:
            LaunchError: they cannot be written.
        """
        self.job.plan.write(self.job.plan_file)
        for path, text in self.files.items():
            try:
                path.write_text(text, encoding="utf-8")
            except OSError as error:
                raise LaunchError(f"{path} cannot be written: {error.strerror}") from error

    def environment(self) -> dict[str, str]:
        """Return the environment to start the launcher in."""
        environment = {**os.environ, **self.variables}
        if self.needs_path:
            path = os.environ.get("PATH", os.defpath)
            environment["PATH"] = os.pathsep.join([str(self.job.mpirun.parent), path])
        return environment

    @property
    def line(self) -> str:
        """The command as one types it in a shell."""
        settings = [shlex.quote(f"{name}={value}") for name, value in self.variables.items()]
        if self.needs_path:
            settings.append(f'PATH={shlex.quote(str(self.job.mpirun.parent))}:"$PATH"')
        return " ".join([*(["env", *settings] if settings else []), shlex.join(self.command)])


Render = Callable[[Job], Launch]


@dataclass(frozen=True)
class Segment:
    """Consecutive ranks that are started alike: of one role and, if the dialect asks for it, on one host."""

    count: int
    role: str
    host: str


def segments(plan: Plan, by_host: bool) -> list[Segment]:
    """Cut the world into segments, in rank order."""

    def kind(rank: Rank) -> tuple[str, str]:
        return rank.role, rank.host if by_host else ""

    return [Segment(len(list(ranks)), *key) for key, ranks in groupby(plan.world, kind)]


def program(job: Job, role: str = "") -> str:
    """What one rank runs, in words that no launcher splits, quotes or expands.

    Without a role it takes that from the plan as well.

    Raises:
        LaunchError: there is a blank or a quote in a path or a value.
    """
    for what, path in {"interpreter": job.python, "plan": job.plan_file}.items():
        if not _PLAIN.fullmatch(str(path)):
            raise LaunchError(
                f"the {what} {path} has a blank or a special character in its path, which not every "
                "launcher passes on: move it, or reach it through a symbolic link with a plain name"
            )
    for name, value in job.variables.items():
        if not _PLAIN.fullmatch(value):
            raise LaunchError(
                f"the environment variable {name} is {value!r}: not every launcher passes blanks and "
                "special characters on; use a path without them, a symbolic link for example"
            )
    settings = [f"{name}={value}" for name, value in job.variables.items()]
    # mpi4py's -m ends the whole job where one rank fails. ps-lite nodes know no MPI.
    library = [] if job.plan.nodes else ["-m", "mpi4py"]
    words = [*settings, str(job.python), *library, "-m", "hpcps.runtime", str(job.plan_file), role]
    return " ".join(word for word in (["env", *words] if settings else words) if word)


def hosts_file(job: Job) -> tuple[Path, str]:
    """The companion for launchers that take the hosts apart from the segments: `host:count` in rank order."""
    lines = [f"{host}:{len(list(ranks))}\n" for host, ranks in groupby(job.plan.world, lambda rank: rank.host)]
    return job.configfile.with_name(job.configfile.name + ".hosts"), "".join(lines)
