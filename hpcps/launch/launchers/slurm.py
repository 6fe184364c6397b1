"""Slurm: `srun --multi-prog conf`."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from hpcps.launch.launchers.base import Launcher
from hpcps.launch.launchers.job import MPICH_WITH_UCX, OPEN_MPI_WITH_UCX, Job, Launch


class Slurm(Launcher):
    """The launcher of Slurm: `srun --multi-prog conf`.

    A line is `first-last program`, for consecutive ranks of one role. A separate file lists the hosts, one line per
    rank. Older versions of srun read at most 511 characters of a line (`in_line[512]`), Slurm 22.05 at least 5000.

    The variables of the ranks are set for srun, which passes its environment to the ranks; this keeps the lines short.
    `--export=ALL` makes srun pass it also if the batch script was submitted with `--export=NONE`.

    MPICH and the implementations derived from it, such as the MPICH wheel, use `pmi2`, and every build of Slurm
    supports it. Open MPI 5, for example, needs the option `--mpi=pmix`; srun uses the last `--mpi` that it finds.

    srun kills the ranks immediately when it receives SIGTERM. It forwards SIGUSR1, which a rank handles like SIGTERM.
    """

    executable = "srun"
    version = re.compile(r"^slurm(?:-wlm)? ")
    rank_variables = ("SLURM_PROCID",)
    job_variables = ("SLURM_JOB_ID",)
    longest_line = 511
    name: Literal["slurm"] = "slurm"

    def with_ucx(self, job: Job, variables: Mapping[str, str]) -> Job:
        """Set the variables of MPICH and of Open MPI: srun starts ranks of either."""
        open_mpi = {f"OMPI_MCA_{name}": value for name, value in OPEN_MPI_WITH_UCX.items()}
        return replace(job, variables={**job.variables, **variables, **MPICH_WITH_UCX, **open_mpi})

    def render(self, job: Job) -> Launch:
        """Render the lines and the hosts; the command holds the rest."""
        files = {job.configfile: self.text(replace(job, variables={}), "{ranks} {program}")}
        variables = dict(job.variables)
        command = [str(job.mpirun), "--mpi=pmi2", "--export=ALL", "--kill-on-bad-exit=1", "--overcommit"]
        command += ["--cpu-bind=none", "-n", str(len(job.plan.world))]
        if job.local:
            command += ["-N", "1"]
        else:
            files[job.hosts_file] = "".join(f"{rank.host}\n" for rank in job.plan.world)
            variables["SLURM_HOSTFILE"] = str(job.hosts_file)
            command.append("--distribution=arbitrary")
        command += [*job.options, "--multi-prog", str(job.configfile)]
        return Launch(job, files, tuple(command), variables, stop_signal=signal.SIGUSR1)
