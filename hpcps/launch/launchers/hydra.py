"""Hydra, the launcher of MPICH and of Intel MPI: `mpirun -configfile conf`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from hpcps.launch.launchers.base import Launcher
from hpcps.launch.launchers.job import MPICH_WITH_UCX, Job, Launch, host_counts, one_segment


class Hydra(Launcher):
    """Hydra, the launcher of MPICH: `mpirun -f conf.hosts -configfile conf`.

    A segment holds consecutive ranks of one role. A separate file lists the hosts in rank order, because Hydra applies
    the first `-host` to all segments. Up to MPICH 4.2, Hydra reads the configfile as one line, in which ` :` separates
    the segments; later versions accept this format too. Hydra may damage the joined text if it exceeds 16 KiB. In a job
    of Slurm, it starts its helpers with `srun`.
    """

    version = re.compile(r"HYDRA build details:\s+Version:")
    rank_variables = ("PMI_RANK",)
    longest_file = 16_000
    name: Literal["hydra"] = "hydra"

    def with_ucx(self, job: Job, variables: Mapping[str, str]) -> Job:
        return replace(job, variables={**job.variables, **variables, **MPICH_WITH_UCX})

    def render(self, job: Job) -> Launch:
        """Render the segments and the hosts."""
        conf = self.text(job, "-n {count} {program}", end=" :\n")
        command = [str(job.mpirun), *job.options]
        if job.local:
            # Inside a batch job, Hydra would ask the batch system for a host of this name.
            command += ["-launcher", "fork"]
        elif job.agent:
            # `rsh`, because with `ssh` Hydra would add options of ssh.
            command += ["-launcher", "rsh", "-launcher-exec", str(job.agent)]
        command += ["-f", str(job.hosts_file), "-configfile", str(job.configfile)]
        files = {job.configfile: conf, job.hosts_file: host_counts(job)}
        return Launch(job, files, tuple(command), dict(job.helper_variables))


class Intel(Launcher):
    """The launcher of Intel MPI: `mpirun -configfile conf`.

    Each segment has its own `-host`; a ` :` at the end of a line is an error. `mpirun` is a script that finds its
    helpers on PATH. In a PBS job it reaches the other hosts without `job.agent`. It binds each rank to a part of the
    cores before the rank starts, unless the ranks bind themselves.
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
        variables = dict(job.helper_variables)
        if job.plan.script is not None and job.plan.script.bind:
            variables["I_MPI_PIN"] = "off"
        return Launch(job, files, tuple(command), variables, needs_path=job.mpirun.is_absolute())
