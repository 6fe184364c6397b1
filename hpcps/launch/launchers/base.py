"""The base class of launchers: how hpcps detects one, what it writes for it, and which variables it gives its ranks."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from hpcps.errors import LaunchError
from hpcps.launch.launchers.job import Job, Launch, one_segment, program, refuse_special_characters, segments
from hpcps.registry.config import Config


class Launcher(Config, ABC):
    """A launcher. A subclass adds `name`, overrides the class variables that differ, and implements `render`.

    Each member says which module uses it; modules are named within `hpcps/launch/`.
    """

    executable: ClassVar[str] = "mpirun"
    """Its usual name on PATH.

    `detect.find_mpirun` looks for it, and `cli/configgen.py` writes it if the launcher is not installed here.
    """

    version: ClassVar[re.Pattern[str] | None] = None
    """A pattern that matches the output of its `--version`. None: hpcps never detects this launcher.

    `recognises` compares it; `detect.detect_mpi` lists the launchers that have one.
    """

    rank_variables: ClassVar[tuple[str, ...]] = ()
    """Environment variables that hold the rank of a process before MPI starts; the first that holds a number counts.

    The plan contains them, because a process loads plugins only after it knows which run it belongs to.
    `launch_of` puts them into the plan; `local_rank.planned_rank` reads them in each process.
    """

    job_variables: ClassVar[tuple[str, ...]] = ()
    """Environment variables in which its batch system stores the id of a job.

    `batch.job_id` and `batch.allocation` read them; with them, `doctor/diagnosis.py` finds out whether
    the launcher starts processes only in a job, and whether this is one.
    """

    longest_line: ClassVar[int | None] = None
    """Maximum length of a line of its file in bytes, with the line end; None: no limit. Only `text` uses it."""

    longest_file: ClassVar[int | None] = None
    """Maximum size of its file in bytes; `text` replaces a longer file with a single segment. None: no limit.

    Only `text` uses it.
    """

    replaces: ClassVar[bool] = False
    """Whether it starts a process again that is lost, if the plan permits the loss.

    Only `launch_of` uses it.
    """

    results_there: ClassVar[Path | None] = None
    """The folder of all results where its processes are, if that is not the folder of this machine.

    Only `cli/configgen.py` uses it.
    """

    name: str
    """Its name in `--dialect` (`detect.find_launcher`) and in the messages of `detect` and the doctor."""

    @classmethod
    def declarations(cls) -> dict[str, object]:
        """Return the facts that `hpcps components` prints about it (`cli/components.py`)."""
        rank, job = list(cls.rank_variables), list(cls.job_variables)
        return {"executable": cls.executable, "rank variables": rank, "job variables": job}

    def recognises(self, path: Path, output: str) -> bool:
        """Tell whether an executable is this launcher; `output` is what it prints for `--version`.

        `detect.detect_mpi` asks every launcher, plugins first.
        """
        return self.version is not None and self.version.search(output) is not None

    def launch_of(self, job: Job) -> Launch:
        """Return the files and the command with which this launcher starts a job.

        `prepare.prepare` calls it for runs, and `gpu_mpi` for two ranks that try MPI.

        Raises:
            LaunchError: the launcher cannot express the job.
        """
        if job.plan.replaceable and not self.replaces:
            who = "run shall survive that (survive.workers)" if job.plan.script is None else "script shall survive that"
            raise LaunchError(
                f"{self.name} ends all processes when one is lost, and the {who}: "
                "leave --mpirun and --dialect out, so that hpcps starts the processes itself"
            )
        refuse_special_characters(job)
        return self.render(replace(job, plan=replace(job.plan, rank_variables=self.rank_variables)))

    def with_ucx(self, job: Job, variables: Mapping[str, str]) -> Job:
        """Return a job whose MPI uses a certain UCX for all messages; the same job if its MPI does not use UCX.

        `gpu_mpi.with_gpu_mpi` calls it for runs that may send device memory.

        Args:
            job: the job to start.
            variables: the environment variables with which every rank finds that UCX.
        """
        return job

    @abstractmethod
    def render(self, job: Job) -> Launch:
        """Render a job in the format of the launcher; only `launch_of` calls it.

        `launch_of` has checked that the paths and values have no characters that a launcher would change.
        """

    def text(self, job: Job, form: str, end: str = "\n") -> str:
        """Return one line per segment of the world, in rank order; one segment of all ranks if the text is too long.

        The `render` of a subclass calls it.

        Args:
            job: the job to start.
            form: the format of a line, with the fields `{count}`, `{ranks}` (first-last), `{host}` and `{program}` of a
                segment. If it contains `{host}`, every segment is on one host.
            end: the end of every line except the last.

        Raises:
            LaunchError: a line is longer than the launcher can read.
        """
        lines = [
            form.format(count=part.count, ranks=part.ranks, host=part.host, program=program(job, part.role))
            for part in segments(job.plan, by_host="{host" in form)
        ]
        longest = max(lines, key=len)
        if self.longest_line and len(longest.encode()) >= self.longest_line:
            raise LaunchError(
                f"a line of {job.configfile} would have {len(longest)} characters, {self.executable} reads "
                f"{self.longest_line}: use shorter paths for the clone, the environment and the results:\n  {longest}"
            )
        text = end.join(lines) + "\n"
        return one_segment(job) if self.longest_file and len(text.encode()) > self.longest_file else text
