"""Turn a person's own program into a launch: workers that execute it, and servers."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from hpcps.launch.batch import remote_agent
from hpcps.launch.launchers import Job, Launch
from hpcps.launch.placement import place
from hpcps.launch.plan import Plan, Script
from hpcps.launch.prepare import Site, own_umask, variables_of
from hpcps.spec.schema import Topology


def prepare_script(command: Sequence[str], workers: int, servers: int, folder: Path, site: Site) -> Launch:
    """Return the launch of a script.

    Args:
        command: the program and its arguments.
        workers: the number of processes that execute it.
        servers: the number of processes that combine their tensors; 0: the workers do.
        folder: the folder for the files of the launch, which every host must be able to read.
        site: the launcher and the hosts.

    Raises:
        LaunchError: the processes cannot be placed, or the launcher cannot express the job.
    """
    world = place(Topology(workers=workers, validators=0, servers=servers), site.hosts, site.hostfile)
    script = Script(tuple(command), os.getcwd(), _free_port())
    threads = os.environ.get("OMP_NUM_THREADS", "")
    job = Job(
        plan=Plan(world, (), umask=own_umask(), script=script),
        plan_file=folder / "conf.plan.json",
        configfile=folder / "conf",
        mpirun=site.mpirun,
        python=Path(sys.executable),
        variables=variables_of(int(threads) if threads.isdecimal() and int(threads) else 1, os.environ),
        options=site.options,
        agent=remote_agent() if site.hosts else None,
    )
    return site.launcher.launch_of(job)


def _free_port() -> int:
    """Return a port that is free on this host now; on another host it probably is, too."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
