"""Turn a person's own program into a launch: workers that execute it, and servers."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from hpcps.errors import LaunchError
from hpcps.inputs import printable
from hpcps.launch.batch import helper_variables, interpreter, own_gpus, remote_agent
from hpcps.launch.hostfile import Host
from hpcps.launch.launchers import Job, Launch
from hpcps.launch.limits import numa_nodes
from hpcps.launch.placement import place
from hpcps.launch.plan import Plan, PlannedRun, Rank, Script
from hpcps.launch.prepare import Site, connected, own_umask, variables_of
from hpcps.launch.shares import shares_of
from hpcps.registry.components import Plugin
from hpcps.registry.config import MOST_ROLES, NAME
from hpcps.spec.schema import Topology
from hpcps.transport import ProcessTransport

_QUEUES = {"UCX_TCP_SNDBUF": "256k", "OMPI_MCA_btl_tcp_sndbuf": str(1 << 18)}
"""What MPICH and Open MPI read: the bytes of a TCP connection that the kernel takes before it has sent others."""


def name_of(command: Sequence[str]) -> str:
    """Return the name of an experiment for a program: that of its Python file, if it has one."""
    file = next((word for word in command if word.endswith(".py")), command[0])
    name = re.sub(r"[^A-Za-z0-9_.-]", "-", Path(file).stem).lstrip("_.-")[:100]
    return name if re.fullmatch(NAME, name) else "script"


def run_of(
    command: Sequence[str],
    workers: int,
    servers: int,
    transport: ProcessTransport,
    experiment: Path,
    plugins: Sequence[Plugin] = (),
    *,
    colocated: bool = False,
) -> PlannedRun:
    """Return the run of a launch: each launch is a run of its own, and launches of one command are repetitions.

    Args:
        command: the program and its arguments.
        workers: the number of processes that execute it.
        servers: the number of servers.
        transport: how they are connected.
        experiment: the folder of the results of all runs.
        plugins: plugins whose components all processes know.
        colocated: whether workers combine tensors beside the servers.
    """
    words = command[1:] if re.match("python[0-9.]*$", Path(command[0]).name) else command
    text = printable(" ".join(words))
    run_id = hashlib.sha256(repr((command, time.time_ns(), os.getpid())).encode()).hexdigest()[:10]
    counts = (f"{count} {role}{'s' * (count != 1)}" for count, role in ((workers, "worker"), (servers, "server")))
    label = f"{text} ({', '.join([*counts, *(['colocated'] * colocated)])})"
    index = len(list((experiment / "runs").glob("*")))
    topology = {"workers": workers, "validators": 0, "servers": servers} | ({"colocated": True} if colocated else {})
    swept = {"command": text, **{f"topology.{key}": value for key, value in topology.items() if key != "validators"}}
    run = {
        "name": experiment.name,
        "seed": index,
        "command": text,
        "topology": topology,
        "train": {"mode": "sync"},
        "transport": transport.model_dump(mode="json"),
    }
    spec = {"run_id": run_id, "label": label, "index": index, "swept": swept, "run": run}
    if plugins:
        spec["plugins"] = [plugin.described() for plugin in plugins]
    return PlannedRun(run_id, label, str(experiment.absolute() / "runs" / run_id), spec)


def prepare_script(
    command: Sequence[str],
    workers: int,
    servers: int,
    transport: ProcessTransport,
    run: PlannedRun,
    folder: Path,
    site: Site,
    *,
    trace: bool = False,
    colocated: bool = False,
    bind: bool = False,
    survives: bool = False,
) -> Launch:
    """Return the launch of a script.

    Args:
        command: the program and its arguments.
        workers: the number of processes that execute it.
        servers: the number of processes that combine their tensors; 0: the workers do.
        transport: how they are connected.
        run: the run that records it.
        folder: the folder for the files of the launch, which every host must be able to read.
        site: the launcher and the hosts.
        trace: whether every rank shall write a trace.
        colocated: whether each server has a host of its own, and the workers combine tensors beside the servers.
        bind: whether each process is bound to a NUMA node.
        survives: whether it goes on without a process that is lost, and with its replacement.

    Raises:
        LaunchError: the processes cannot be placed, the launcher cannot express the job, or the transport does not
            survive a lost process.
    """
    if survives and not transport.replaces:
        raise LaunchError(
            f"--survive needs --transport pslite: over {transport.kind}, all processes end when one is lost; --retry "
            "starts them again"
        )
    if bind and site.hosts is None:
        numa_nodes()  # here, so that the reason is given once
    if colocated:
        world = _place_apart(workers, servers, site)
    else:
        world = place(Topology(workers=workers, validators=0, servers=servers), site.hosts, site.hostfile)
    world = connected(world, transport)
    shares = shares_of(world) if colocated else ()
    # Other hosts may have another PATH: under Open MPI and ssh not that of an environment that is activated here.
    found = shutil.which(command[0]) or command[0]
    hosts = _hosts(site) if survives else ()
    script = Script((found, *command[1:]), os.getcwd(), _free_port(), shares, bind, survives, hosts)
    threads = os.environ.get("OMP_NUM_THREADS", "")
    job = Job(
        plan=Plan(world, (run,), mpi="mpi" in transport.offers, trace=trace, umask=own_umask(), script=script),
        plan_file=folder / "conf.plan.json",
        configfile=folder / "conf",
        mpirun=site.mpirun,
        python=interpreter(),
        variables={
            **variables_of(int(threads) if threads.isdecimal() and int(threads) else 1, os.environ),
            **_queues(),
        },
        options=site.options,
        agent=remote_agent() if site.hosts else None,
        helper_variables=helper_variables() if site.hosts else {},
    )
    return ((site.replacing if survives else None) or site.launcher).launch_of(job)


def _hosts(site: Site) -> tuple[Mapping[str, Any], ...]:
    """Return where processes may be added; this machine takes as many as there can be, without a host file."""
    hosts = own_gpus((Host("localhost", 2 * MOST_ROLES),), os.environ) if site.hosts is None else site.hosts
    return tuple(map(asdict, hosts))


def _queues() -> dict[str, str]:
    """Return the variables with which MPI gives the kernel little at a time, without those that are set already.

    What waits in the kernel cannot be overtaken: by default it takes some megabytes of each connection.
    """
    return {name: value for name, value in _QUEUES.items() if name not in os.environ}


def _place_apart(workers: int, servers: int, site: Site) -> tuple[Rank, ...]:
    """Assign the last hosts to the servers, one to each, and place the workers on the others.

    Without a host file, all are on this machine.

    Raises:
        LaunchError: there are no servers, too few hosts or slots, or all workers have the same host.
    """
    if not servers:
        raise LaunchError(
            "--colocated lets workers combine tensors beside servers, and there are none: add --servers S, or leave it "
            "out, because without servers the workers combine all tensors"
        )
    if site.hosts is None:
        return place(Topology(workers=workers, validators=0, servers=servers))
    hosts, source = site.hosts, site.hostfile or "the job"
    if len(hosts) <= servers:
        need = "1 server needs a host" if servers == 1 else f"{servers} servers need a host each"
        raise LaunchError(
            f"--colocated: {need}, beside those of the workers, and {source} has {len(hosts)}: add hosts, or leave out "
            "--colocated, which lets servers use free slots of the workers' hosts"
        )
    try:
        world = place(Topology(workers=workers, validators=0, servers=0), hosts[:-servers], site.hostfile)
    except LaunchError as error:
        last = f"the last {servers} hosts are those of the servers" if servers > 1 else "the last host is the server's"
        raise LaunchError(f"--colocated: {last}; {error}") from error
    if len({rank.host for rank in world}) == 1:
        raise LaunchError(
            f"--colocated: all workers are on {world[0].host}, where they combine tensors without the network: leave "
            "out --servers and --colocated, or give workers more hosts"
        )
    return (*world, *(Rank(workers + s, "server", s, host.name) for s, host in enumerate(hosts[-servers:])))


def _free_port() -> int:
    """Return a port that is free on this host now; on another host it probably is, too."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
