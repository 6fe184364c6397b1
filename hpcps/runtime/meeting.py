"""How the processes of a launch meet: as the ranks of MPI's world, or as ps-lite nodes."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hpcps.errors import LaunchError
from hpcps.launch.local_rank import planned_rank
from hpcps.launch.plan import Plan, Rank
from hpcps.launch.rendezvous import Rendezvous
from hpcps.messages import Peer
from hpcps.transport.gathering import Gathering

if TYPE_CHECKING:
    from hpcps.transport.pslite.meta import NodeInfo
    from hpcps.transport.pslite.settings import Settings

_NODE_ROLES = {"server": "server", "worker": "worker", "validator": "worker", "scheduler": "scheduler"}


@contextmanager
def meeting(plan: Plan, plan_file: Path) -> Iterator[Gathering]:
    """Meet the other processes of a launch; leave them at the end.

    Raises:
        LaunchError: this process does not know who it is, or the others did not come. MPI says such things itself.
    """
    if plan.nodes:
        with _over_pslite(plan, plan_file) as gathering:
            yield gathering
        return
    from mpi4py import MPI

    from hpcps.transport.mpi_gathering import MpiGathering

    yield MpiGathering(MPI.COMM_WORLD, {Peer(member.role, member.index): member.rank for member in plan.world})


@contextmanager
def _over_pslite(plan: Plan, plan_file: Path) -> Iterator[Gathering]:
    try:
        from hpcps.transport.pslite.memory import keep_freed_memory
        from hpcps.transport.pslite_gathering import PsliteGathering
    except ModuleNotFoundError as error:
        raise LaunchError(f"{socket.gethostname()} has no module {error.name}: pip install 'hpcps[pslite]'") from error
    me = planned_rank(plan)
    if me is None:
        raise LaunchError(
            f"nothing says which of the {len(plan.world)} processes of {plan_file} this one is, as launchers do in "
            "PMI_RANK, OMPI_COMM_WORLD_RANK, PMIX_RANK, PALS_RANKID or SLURM_PROCID: set HPCPS_RANK"
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
    gathering = None
    try:
        gathering = PsliteGathering(settings, me.rank, world, hosts, plan.fingerprint, announce)
        yield gathering
    finally:
        if gathering is not None:
            gathering.abandon()
        if announced:
            rendezvous.clear()


def _settings(plan: Plan, me: Rank, rendezvous: Rendezvous, environment: Mapping[str, str]) -> Settings:
    """Return the settings of this process's node.

    The plan says what all share, and the environment may add what only this host knows (`DMLC_NODE_HOST`) and what
    tests need (`PS_DROP_MSG`). Nothing is put into the environment: an import of mxnet that finds DMLC_ROLE there makes
    the process a node of its own, and never returns.
    """
    from hpcps.transport.pslite.address import own_address
    from hpcps.transport.pslite.settings import Settings

    own = {name: value for name, value in environment.items() if name.startswith("PS_") or name == "DMLC_NODE_HOST"}
    own["PS_HEARTBEAT_INTERVAL"] = "0"  # see `_beating`
    variables = {"DMLC_PS_ROOT_PORT": "0", **own, **plan.nodes, "DMLC_ROLE": _NODE_ROLES[me.role]}
    if me.role != "scheduler":
        # What a user may have set is checked before the scheduler is looked for.
        variables |= {"DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": "1"}
        settings = _beating(Settings.from_environment(variables))
        host, port = rendezvous.find(settings.timeout)
        return replace(settings, root_host=host, root_port=port)
    others = [member.host for member in plan.world if member.host != me.host]
    # On one machine loopback. Else, unless an interface is given, the network that the other hosts are on.
    settings = Settings.from_environment({**variables, "DMLC_PS_ROOT_URI": others[0] if others else "127.0.0.1"})
    told, _ = own_address(settings.host, settings.interface, settings.root_host)
    return _beating(replace(settings, root_host=told))


def _beating(settings: Settings) -> Settings:
    """Ten heartbeats until a node counts as dead; the variable has whole seconds only."""
    return replace(settings, heartbeat_interval=settings.heartbeat_timeout / 10)
