"""Launch without MPI: `python -m hpcps.launch.starter conf` starts the processes, here and over ssh."""

from __future__ import annotations

from typing import Literal

from hpcps.errors import LaunchError
from hpcps.launch.launchers.base import Launcher
from hpcps.launch.launchers.job import Job, Launch
from hpcps.launch.local_rank import OWN_RANK


class Plain(Launcher):
    """The starter of hpcps, for processes that need no MPI: `python -m hpcps.launch.starter conf --agent ssh`."""

    executable = "python -m hpcps.launch.starter"
    rank_variables = (OWN_RANK,)
    replaces = True
    name: Literal["plain"] = "plain"

    def render(self, job: Job) -> Launch:
        """Render a segment per host and role: `-n count -host host program`.

        Raises:
            LaunchError: the processes use MPI, which needs its own launcher; or the job has options for a launcher.
        """
        if job.plan.mpi:
            raise LaunchError(
                'plain starts processes that need no MPI, such as those of transport.kind = "pslite": give another '
                "--dialect"
            )
        if job.options:
            raise LaunchError(f"--mpirun-options {' '.join(job.options)!r}: no launcher is used; give --mpirun as well")
        conf = self.text(job, "-n {count} -host {host} {program}")
        command = [str(job.python), "-m", "hpcps.launch.starter", str(job.configfile), "--plan", str(job.plan_file)]
        if not job.local:
            command += ["--agent", str(job.agent or "ssh")]
        return Launch(job, {job.configfile: conf}, tuple(command), dict(job.variables))
