"""Open MPI: `mpirun --app conf`."""

from __future__ import annotations

import os
import pwd

from hpcps.errors import LaunchError
from hpcps.launch.dialects.job import Job, Launch, program, segments

LONGEST_LINE = 1000
"""Characters; Open MPI 5 reads lines into a buffer of 1 KiB and fails without a word (status 251) on longer ones."""


def render(job: Job) -> Launch:
    """Write a segment per host and role, each with its `--host`; comments and blank lines would crash version 5.

    Without OVERSUBSCRIBE there may not be more ranks than cores; with it, binding them to cores makes them queue.

    Raises:
        LaunchError: a line is longer than Open MPI reads.
    """
    parts = segments(job.plan, by_host=True)
    lines = [f"-n {s.count} --host {s.host}:{s.count} {program(job, s.role)}\n" for s in parts]
    longest = max(lines, key=len)
    if len(longest.encode()) > LONGEST_LINE:
        raise LaunchError(
            f"a line of {job.configfile} would have {len(longest)} characters, Open MPI reads {LONGEST_LINE}: "
            f"shorten the paths in it, with a symbolic link for example:\n  {longest.strip()}"
        )
    options = ["--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", *job.options]
    variables: dict[str, str] = {}
    if job.agent:
        # What versions 5 and 4 call it; without effect where the launcher knows the batch system itself.
        variables = {"PRTE_MCA_plm_ssh_agent": str(job.agent), "OMPI_MCA_plm_rsh_agent": str(job.agent)}
    if os.getuid() == 0:
        variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if not os.environ.get("HOME"):
        variables["HOME"] = pwd.getpwuid(os.getuid()).pw_dir
    command = (str(job.mpirun), *options, "--app", str(job.configfile))
    return Launch(job, {job.configfile: "".join(lines)}, command, variables)
