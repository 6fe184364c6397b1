"""Intel MPI: `mpirun -configfile conf`."""

from __future__ import annotations

import re
from typing import Literal

from hpcps.launch.launchers.base import Launcher
from hpcps.launch.launchers.job import Job, Launch, host_counts, one_segment


class Intel(Launcher):
    """The launcher of Intel MPI: `mpirun -configfile conf`.

    Each segment has its own `-host`; a ` :` at the end of a line is an error. `mpirun` is a script that finds its
    helpers on PATH. In a PBS job it reaches the other hosts without `job.agent`.
    """

    version = re.compile(r"Intel\(R\) MPI Library")
    rank_variables = ("PMI_RANK",)
    longest_file = 16_000
    name: Literal["intel"] = "intel"

    def render(self, job: Job) -> Launch:
        """Render the segments; if they are too long, render one segment of all ranks and a machine file."""
        files = {job.configfile: self.text(job, "-n {count} -host {host} {program}")}
        command = [str(job.mpirun), *job.options]
        if job.local:
            command += ["-launcher", "fork"]
        if files[job.configfile] == one_segment(job):
            files[job.hosts_file] = host_counts(job)
            command += ["-machinefile", str(job.hosts_file)]
        command += ["-configfile", str(job.configfile)]
        return Launch(job, files, tuple(command), needs_path=job.mpirun.is_absolute())
