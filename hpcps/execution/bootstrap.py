"""Bootstrap the process group of a launch: each process joins it over the transport of the runs."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

from hpcps.errors import LaunchError
from hpcps.launch.generations import Generation
from hpcps.launch.guard import LostGuards, mpi_start
from hpcps.launch.local_rank import INCARNATION, OWN_RANK, planned_rank
from hpcps.launch.plan import Plan
from hpcps.launch.signs_of_life import SignsOfLife
from hpcps.protocol.messages import Peer
from hpcps.records.run_directory import PLUGINS
from hpcps.registry import active, using
from hpcps.registry.plugins import registry_of
from hpcps.transport import LaunchedProcess, ProcessGroup, ProcessTransport
from hpcps.transport.process_group import keep_to_this_process, unwatched
from hpcps.transport.rendezvous import Rendezvous

_LEAST_START = 60.0
"""Least seconds in which MPI must connect the processes; on a loaded host some begin much later than others."""


@contextmanager
def process_group(
    plan: Plan, plan_file: Path, timeout: float | None = None, generation: Generation | None = None
) -> Iterator[ProcessGroup]:
    """Join the process group of a launch; the context leaves it at its end.

    Args:
        plan: the plan of the launch.
        plan_file: its path.
        timeout: seconds in which MPI must connect the processes, else the guard of this one ends it; at least a minute.
            None: `transport.timeout`.
        generation: that of a script; the processes of another generation belong to another group.

    Raises:
        LaunchError: this process has no rank, the other processes did not join, or there is no MPI library. Once its
            library is loaded, MPI and the guard report such errors.
    """
    me = planned_rank(plan)
    if me is None and not plan.mpi:
        raise LaunchError(
            f"this process has no rank among the {len(plan.world)} processes of {plan_file}: its launcher sets none of "
            f"{', '.join(plan.rank_variables)}; set {OWN_RANK}"
        )
    own = {} if generation is None else {"interrupt": generation.check}
    # A script's processes begin a new group when one is lost, and those of runs go on in theirs.
    replaceable = plan.replaceable if plan.script is None else frozenset[int]()
    process = LaunchedProcess(
        None if me is None else me.rank,
        tuple(Peer(member.role, member.index) for member in plan.world),
        tuple(socket.gethostname() if member.host == "localhost" else member.host for member in plan.world),
        plan.fingerprint if generation is None else f"{plan.fingerprint}-{generation.number}",
        Rendezvous(plan_file if generation is None else generation.file),
        SignsOfLife(plan, plan_file, me, plan.timeout).check if me else unwatched,
        replaceable=replaceable,
        silence=plan.silence(plan.world[min(replaceable)]) if replaceable else math.inf,
        leader=plan.leader,
        incarnation=int(os.environ.get(INCARNATION, "0")) if plan.script is None else 0,
        **own,
    )
    transport = _transport(plan)
    with ExitStack() as stack:
        limit = start_limit(transport.timeout if timeout is None else timeout)
        with mpi_start(LostGuards(plan_file).file(str(me)), limit) if plan.mpi and me else nullcontext():
            group = stack.enter_context(transport.group(process))
        keep_to_this_process(group, str(plan.world[group.rank]))
        yield group


def start_limit(timeout: float) -> float:
    """Return the seconds in which MPI must connect the processes of a launch with this timeout."""
    return max(timeout, _LEAST_START)


def _transport(plan: Plan) -> ProcessTransport:
    """Return the transport that the runs of a plan share; load their plugins only if it is one of theirs."""
    first = plan.runs[0]
    registry = active()
    if first.spec["run"]["transport"]["kind"] not in registry.of("transports"):
        registry = registry_of(first.plugins, Path(first.directory) / PLUGINS)
    with using(registry):
        # The other components of the run may belong to its plugins, so the whole run is not validated here.
        transport = registry.of("transports")[first.spec["run"]["transport"]["kind"]].model_validate(
            first.spec["run"]["transport"]
        )
    assert isinstance(transport, ProcessTransport), "other runs are not launched"
    return transport
