"""No launcher of MPI: `python -m hpcps.launch.starter conf` starts the processes, here and over ssh."""

from __future__ import annotations

from hpcps.errors import LaunchError
from hpcps.launch.dialects.job import Job, Launch, program, segments


def render(job: Job) -> Launch:
    """Write a segment per host and role: `-n count -host host program`.

    Raises:
        LaunchError: the processes are to meet over MPI, which needs its launcher; or there are options for one.
    """
    if not job.plan.nodes:
        raise LaunchError(
            'plain starts processes that need no MPI, those of transport.kind = "pslite": give another --dialect'
        )
    if job.options:
        raise LaunchError(f"--mpirun-options {' '.join(job.options)!r}: no launcher is used; give --mpirun as well")
    lines = [f"-n {s.count} -host {s.host} {program(job, s.role)}\n" for s in segments(job.plan, by_host=True)]
    command = [str(job.python), "-m", "hpcps.launch.starter", str(job.configfile)]
    if not job.local:
        command += ["--agent", str(job.agent or "ssh")]
    return Launch(job, {job.configfile: "".join(lines)}, tuple(command), dict(job.variables))
