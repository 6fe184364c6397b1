"""Turn points of an experiment into launches that are ready to be written and started."""

from __future__ import annotations

import json
import os
import sysconfig
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import hpcps
from hpcps.errors import LaunchError
from hpcps.launch import gpu_mpi
from hpcps.launch.batch import helper_variables, interpreter, job_id, remote_agent
from hpcps.launch.hostfile import Host
from hpcps.launch.launchers import Job, Launch, Launcher
from hpcps.launch.local_rank import same_name
from hpcps.launch.placement import place, with_further
from hpcps.launch.plan import Plan, PlannedRun, Rank
from hpcps.records.locate import absolute, run_folder

if TYPE_CHECKING:
    from hpcps.spec.point import Point
    from hpcps.spec.schema import Run
    from hpcps.spec.transport import Transport


@dataclass(frozen=True)
class Site:
    """The launcher and the hosts of a launch.

    Attributes:
        launcher: the launcher that starts the processes.
        mpirun: its executable.
        hosts: the machines; None for this machine only.
        hostfile: the file that lists the hosts, for messages.
        options: further options of the launcher.
        without_mpi: the launcher of processes that do not use MPI; None for the same launcher.
        replacing: the launcher of processes that may be lost and are replaced; None for the same launcher.
    """

    launcher: Launcher
    mpirun: Path
    hosts: Sequence[Host] | None = None
    hostfile: Path | None = None
    options: Sequence[str] = ()
    without_mpi: Launcher | None = None
    replacing: Launcher | None = None


def prepare(
    points: Sequence[Point],
    results: Path,
    configfile: Path,
    site: Site,
    *,
    trace: bool = False,
    supervised: bool = False,
    elsewhere: str = Job.elsewhere,
) -> tuple[Launch, ...]:
    """Plan and render the launches that run the given points.

    Points that share topology and threads form one launch and run back to back, because starting the processes takes
    longer than many small runs; but a run that survives lost processes has a launch of its own. Further launches get
    the name of the configfile with `-2`, `-3`, …

    Args:
        points: the points to run.
        results: the folder of all results.
        configfile: the file to write; the plan and related files go into its folder, which every host must be able to
            read.
        site: the launcher and the hosts.
        trace: whether every rank shall write a trace.
        supervised: whether `hpcps run` supervises the launches and prints their progress.
        elsewhere: see `Job`.

    Raises:
        LaunchError: roles cannot be placed, or the launcher cannot express the job.
    """
    results, configfile = absolute(results), absolute(configfile)
    launches = []
    ordered = sorted(points, key=lambda point: (launch_kind(point), point.index))
    groups = [list(group) for _, group in groupby(ordered, key=lambda point: launch_kind(point))]
    for number, group in enumerate(sorted(groups, key=lambda group: group[0].index), 1):
        run = group[0].run
        if trace and run.survive.workers:
            raise LaunchError("a run over processes that survives their loss cannot be traced: leave --trace out")
        if run.transport.in_process:
            raise LaunchError(
                f"point {group[0].index} ({group[0].label}) has transport {run.transport.kind}, which needs no "
                "launcher: `hpcps run` runs it in one process; for MPI add --set transport.kind=mpi"
            )
        path = configfile if number == 1 else configfile.with_name(f"{configfile.name}-{number}")
        job = Job(
            plan=replace(
                _plan(group, results, site),
                trace=trace,
                progress=not supervised,
                umask=own_umask(),
            ),
            plan_file=path.with_name(f"{path.name}.plan.json"),
            configfile=path,
            mpirun=site.mpirun,
            python=interpreter(),
            variables=variables_of(run.train.threads, os.environ),
            options=site.options,
            agent=remote_agent() if site.hosts else None,
            elsewhere=elsewhere,
            helper_variables=helper_variables() if site.hosts else {},
        )
        other = site.replacing if job.plan.replaceable else site.without_mpi
        launcher = site.launcher if job.plan.mpi else other or site.launcher
        if gpu_mpi.wanted(point.run for point in group):
            job = gpu_mpi.with_gpu_mpi(job, launcher)
        launches.append(launcher.launch_of(job))
    return tuple(launches)


def launch_folder(results: Path, experiment: str, environment: Mapping[str, str] = os.environ) -> Path:
    """Return a folder for the files of a launch; its name is unique among all launches."""
    now = time.strftime("%Y%m%d-%H%M%S")
    # The id of an array subjob contains brackets, which a configfile cannot contain.
    job = "".join(c if c.isalnum() or c in "._-" else "-" for c in job_id(environment))
    return absolute(results) / experiment / "launch" / "-".join(part for part in (job, now, str(os.getpid())) if part)


def launch_kind(point: Point) -> str:
    """Return the settings that all runs of one launch must share, as a text."""
    run = point.present
    transport = run.transport.model_dump(mode="json", exclude={"timeout"})
    settings = [transport, run.topology.model_dump(mode="json"), run.train.threads]
    further = [*(["adversary"] if run.has_adversary else []), *([point.run_id] if run.survive.workers else [])]
    return json.dumps([*settings, *further], sort_keys=True)


def _plan(points: Sequence[Point], results: Path, site: Site) -> Plan:
    run = points[0].present
    _check_spares(run, site)
    world = place(run.topology, site.hosts, site.hostfile, adversary=run.has_adversary, standbys=run.survive.servers)
    runs = tuple(_planned(point, results) for point in points)
    return Plan(connected(world, run.transport), runs, mpi="mpi" in run.transport.offers)


def _check_spares(run: Run, site: Site) -> None:
    """Check that the spare hosts of a run are not those on which it begins.

    Raises:
        LaunchError: one of them is, or the run begins on this machine alone.
    """
    if run.survive.spares and site.hosts is None:
        raise LaunchError(
            "survive.spares is for the hosts of a launch, and this one is on this machine alone: give "
            "--hostfile, or leave survive.spares out"
        )
    if both := [spare for spare in run.survive.spares if any(same_name(spare, h.name) for h in site.hosts or ())]:
        raise LaunchError(
            f"survive.spares has {both[0]}, and so has {site.hostfile or 'the job'}: a spare host has no "
            "processes when the run begins; take it out of one of both"
        )


def connected(world: tuple[Rank, ...], transport: Transport) -> tuple[Rank, ...]:
    """Return the processes of a launch, with the further role of their transport.

    Raises:
        LaunchError: the transport cannot be used here, or not between these hosts.
    """
    if missing := transport.missing():
        raise LaunchError(f'transport.kind = "{transport.kind}": {missing}')
    hosts = len({rank.host for rank in world})
    if "hosts" not in transport.offers and hosts > 1:
        message = f"connects processes of one host, and the launch has {hosts} hosts: use one, or another transport"
        raise LaunchError(f'transport.kind = "{transport.kind}" {message}')
    return with_further(transport.further_role, world) if transport.further_role else world


def _planned(point: Point, results: Path) -> PlannedRun:
    return PlannedRun(point.run_id, point.label, str(run_folder(point, results)), point.spec)


def variables_of(threads: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables that every rank needs, on every host, before it loads its libraries."""
    variables = {name: str(threads) for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")}
    root = Path(hpcps.__file__).parent.parent
    if root != Path(sysconfig.get_path("purelib")):
        # hpcps is not in site-packages: it runs from a clone, or is an editable install.
        inherited = [os.path.abspath(path) for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
        variables["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([str(root), *inherited]))
    if data := environment.get("HPCPS_DATA"):
        variables["HPCPS_DATA"] = str(absolute(Path(data)))
    # The shared library of a Python from a module may be found by it alone, and Open MPI and ssh do not pass it on.
    if libraries := environment.get("LD_LIBRARY_PATH"):
        variables["LD_LIBRARY_PATH"] = libraries
    return variables


def own_umask() -> int:
    """Return the umask of this process, which can only be read by setting it."""
    os.umask(umask := os.umask(0o077))
    return umask
