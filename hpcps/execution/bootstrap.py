"""Bootstrap the process group of a launch: the ranks of MPI's world, or ps-lite nodes."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcps.errors import LaunchError
from hpcps.launch.local_rank import OWN_RANK, planned_rank
from hpcps.launch.plan import Plan, Rank
from hpcps.launch.rendezvous import Rendezvous
from hpcps.protocol.messages import Peer
from hpcps.transport.process_group import ProcessGroup

if TYPE_CHECKING:
    from hpcps.transport.pslite.meta import NodeInfo
    from hpcps.transport.pslite.settings import Settings

_NODE_ROLES = dict.fromkeys(("worker", "validator", "adversary"), "worker") | {
    role: role for role in ("server", "scheduler")
}


@contextmanager
def process_group(plan: Plan, plan_file: Path) -> Iterator[ProcessGroup]:
    """Join the process group of a launch; leave it at the end.

    Raises:
        LaunchError: this process has no rank, the other processes did not join, or there is no MPI library. Once its
            library is loaded, MPI reports such errors itself.
    """
    if plan.nodes:
        with _over_pslite(plan, plan_file) as group:
            yield group
        return
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:  # mpi4py looks for the library when MPI is imported
        reason = str(error).removeprefix("cannot load MPI library\n").partition("\n")[0]
        raise LaunchError(
            f"mpi4py finds no MPI library: {reason}; load your site's MPI module, name the library in MPI4PY_LIBMPI, "
            f"or install one: {sys.executable} -m pip install 'hpcps[mpich]'"
        ) from error

    from hpcps.transport.mpi.process_group import MpiProcessGroup

    yield MpiProcessGroup(MPI.COMM_WORLD, {Peer(member.role, member.index): member.rank for member in plan.world})


@contextmanager
def _over_pslite(plan: Plan, plan_file: Path) -> Iterator[ProcessGroup]:
    try:
        from hpcps.transport.pslite.memory import keep_freed_memory
        from hpcps.transport.pslite.process_group import PsliteProcessGroup
    except ModuleNotFoundError as error:
        raise LaunchError(f"{socket.gethostname()} has no module {error.name}: pip install 'hpcps[pslite]'") from error
    me = planned_rank(plan)
    if me is None:
        raise LaunchError(
            f"this process has no rank among the {len(plan.world)} processes of {plan_file}: its launcher sets none of "
            f"{', '.join(plan.rank_variables)}; set {OWN_RANK}"
        )
    keep_freed_memory()
    rendezvous = Rendezvous(plan_file)
    settings = _settings(plan, me, rendezvous, os.environ)

    announced = False

    def announce(scheduler: NodeInfo) -> None:
        nonlocal announced
        rendezvous.announce(*scheduler.address)
        announced = True

    world = [Peer(member.role, member.index) for member in plan.world]
    hosts = [socket.gethostname() if member.host == "localhost" else member.host for member in plan.world]
    group = None
    try:
        group = PsliteProcessGroup(settings, me.rank, world, hosts, plan.fingerprint, announce)
        yield group
    finally:
        if group is not None:
            group.abandon()
        if announced:
            rendezvous.clear()


def _settings(plan: Plan, me: Rank, rendezvous: Rendezvous, environment: Mapping[str, str]) -> Settings:
    """Return the settings of the node of this process.

    The plan holds the shared settings. The environment may add the name of this host (`DMLC_NODE_HOST`) and settings
    for tests (`PS_DROP_MSG`). This function does not change the environment: if an import of mxnet finds DMLC_ROLE, it
    runs the process as a node of its own and never returns.
    """
    from hpcps.transport.pslite.address import own_address
    from hpcps.transport.pslite.settings import Settings

    own = {name: value for name, value in environment.items() if name.startswith("PS_") or name == "DMLC_NODE_HOST"}
    own["PS_HEARTBEAT_INTERVAL"] = "0"  # see `_with_heartbeats`
    variables = {"DMLC_PS_ROOT_PORT": "0", **own, **plan.nodes, "DMLC_ROLE": _NODE_ROLES[me.role]}
    if me.role != "scheduler":
        # Check the user's variables before the search for the scheduler.
        variables |= {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "1"}
        settings = _with_heartbeats(Settings.from_environment(variables))
        host, port = rendezvous.find(settings.timeout)
        return replace(settings, root_host=host, root_port=port)
    others = [member.host for member in plan.world if member.host != me.host]
    # On one machine: loopback. Else, unless an interface is given: the network of the other hosts.
    settings = Settings.from_environment({**variables, "DMLC_PS_ROOT_URI": others[0] if others else "127.0.0.1"})
    address, _ = own_address(settings.host, settings.interface, settings.root_host)
    return _with_heartbeats(replace(settings, root_host=address))


def _with_heartbeats(settings: Settings) -> Settings:
    """Send ten heartbeats per heartbeat timeout; the environment variable allows whole seconds only."""
    return replace(settings, heartbeat_interval=settings.heartbeat_timeout / 10)
