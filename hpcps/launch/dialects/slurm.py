"""Slurm: `srun --multi-prog conf`."""

from __future__ import annotations

import signal
from dataclasses import replace

from hpcps.errors import LaunchError
from hpcps.launch.dialects.job import Job, Launch, program, segments

LONGEST_LINE = 511
"""Characters; what older versions of srun read of a line (`in_line[512]`). Slurm 22.05 takes 5000 and more."""


def render(job: Job) -> Launch:
    """Write a line per run of ranks of one role: `first-last program`; the hosts are in a file, a line per rank.

    What the ranks need set is set for srun, which hands its environment on: that keeps the lines short. Where a batch
    script was submitted with `--export=NONE` it would not, without `--export=ALL`.

    `pmi2` is what MPICH and its relatives understand, the wheel among them, and what Slurm is always built with. For
    Open MPI 5, say, give `--mpi=pmix` among the options: the last one counts.

    srun kills the ranks at once when it gets SIGTERM. SIGUSR1 it passes on, and a rank takes that for SIGTERM.

    Raises:
        LaunchError: a line is longer than srun may read.
    """
    bare = replace(job, variables={})
    program(job)  # refuses variables with blanks: other shells and launchers see the line that we print
    lines, first = [], 0
    for segment in segments(job.plan, by_host=False):
        last = first + segment.count - 1
        ranks = f"{first}-{last}" if last > first else f"{first}"
        lines.append(f"{ranks} {program(bare, segment.role)}\n")
        first = last + 1
    longest = max(lines, key=len)
    if len(longest.encode()) > LONGEST_LINE:
        raise LaunchError(
            f"a line of {job.configfile} would have {len(longest)} characters, srun reads {LONGEST_LINE}: "
            f"shorten the paths in it, with a symbolic link for example:\n  {longest.strip()}"
        )
    files = {job.configfile: "".join(lines)}
    variables = dict(job.variables)
    command = [str(job.mpirun), "--mpi=pmi2", "--export=ALL", "--kill-on-bad-exit=1", "--overcommit", "--cpu-bind=none"]
    command += ["-n", str(len(job.plan.world))]
    if job.local:
        command += ["-N", "1"]
    else:
        hosts = job.configfile.with_name(job.configfile.name + ".hosts")
        files[hosts] = "".join(f"{rank.host}\n" for rank in job.plan.world)
        variables["SLURM_HOSTFILE"] = str(hosts)
        command.append("--distribution=arbitrary")
    command += [*job.options, "--multi-prog", str(job.configfile)]
    return Launch(job, files, tuple(command), variables, stop_signal=signal.SIGUSR1)
