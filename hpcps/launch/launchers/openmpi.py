"""Open MPI: `mpirun --app conf`."""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from hpcps.launch.launchers.base import Launcher
from hpcps.launch.launchers.job import OPEN_MPI_WITH_UCX, Job, Launch


class OpenMpi(Launcher):
    """The launcher of Open MPI 4 and 5: `mpirun --app conf`.

    Each segment has its own `--host`. Version 5 crashes on comments and blank lines. It reads lines into a buffer of 1
    KiB and fails without a message (status 251) on longer lines. Without OVERSUBSCRIBE, Open MPI refuses more ranks
    than cores; with it, ranks that are bound to cores compete for them.
    """

    version = re.compile(r"mpirun \(Open ?MPI\)")
    rank_variables = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK")
    longest_line = 1000
    name: Literal["openmpi"] = "openmpi"

    def with_ucx(self, job: Job, variables: Mapping[str, str]) -> Job:
        options = [word for name, value in OPEN_MPI_WITH_UCX.items() for word in ("--mca", name, value)]
        return replace(job, variables={**job.variables, **variables}, options=(*options, *job.options))

    def render(self, job: Job) -> Launch:
        """Render the segments; the command holds the options."""
        conf = self.text(job, "-n {count} --host {host}:{count} {program}")
        variables: dict[str, str] = {}
        if job.agent:
            # The names in versions 5 and 4; they have no effect if the launcher supports the batch system itself.
            variables = {"PRTE_MCA_plm_ssh_agent": str(job.agent), "OMPI_MCA_plm_rsh_agent": str(job.agent)}
        if os.getuid() == 0:
            variables |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        if not os.environ.get("HOME"):
            variables["HOME"] = pwd.getpwuid(os.getuid()).pw_dir
        options = ("--map-by", ":OVERSUBSCRIBE", "--bind-to", "none", *job.options)
        return Launch(job, {job.configfile: conf}, (str(job.mpirun), *options, "--app", str(job.configfile)), variables)
