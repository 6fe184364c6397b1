"""PALS, the `mpiexec` of Cray machines: one command line."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Literal

from hpcps.launch.launchers.base import Launcher
from hpcps.launch.launchers.job import Job, Launch, program, segments


class Pals(Launcher):
    """PALS, the launcher of Cray machines: `mpiexec -n 16 --ppn 1 --hosts … : -n 1 …`; it reads no file.

    By default it binds every rank to one core. In a batch job it reaches the other hosts without `job.agent`.
    """

    executable = "mpiexec"
    version = re.compile(r"\bPALS\b")
    rank_variables = ("PALS_RANKID", "PMI_RANK")
    name: Literal["pals"] = "pals"

    def recognises(self, path: Path, output: str) -> bool:
        """Detect it by its version or its path, /opt/cray/pals/<version>/bin/mpiexec; `mpirun` is a link to that."""
        return "/cray/pals/" in str(path.resolve()) or super().recognises(path, output)

    def render(self, job: Job) -> Launch:
        """Render a segment for each role and number of ranks on a host, and join them with ` : `."""
        bare = replace(job, variables={})
        settings = [word for name, value in job.variables.items() for word in ("--env", f"{name}={value}")]
        command = [str(job.mpirun), "--cpu-bind", "none", *job.options]
        alike = groupby(segments(job.plan, by_host=True), lambda segment: (segment.role, segment.count))
        for number, ((role, count), group) in enumerate(alike):
            hosts = [segment.host for segment in group]
            command += [":"] if number else []
            command += ["-n", str(count * len(hosts)), "--ppn", str(count)]
            command += [] if job.local else ["--hosts", ",".join(hosts)]
            command += [*settings, *program(bare, role).split()]
        return Launch(job, {}, tuple(command))
