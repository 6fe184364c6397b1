"""Bootstrap the process group of a launch: each process joins it over the transport of the runs."""

from __future__ import annotations

import socket
from contextlib import AbstractContextManager
from pathlib import Path

from hpcps.errors import LaunchError
from hpcps.launch.local_rank import OWN_RANK, planned_rank
from hpcps.launch.plan import Plan
from hpcps.protocol.messages import Peer
from hpcps.records.run_directory import PLUGINS
from hpcps.registry import active, using
from hpcps.registry.plugins import registry_of
from hpcps.transport import LaunchedProcess, ProcessGroup, ProcessTransport
from hpcps.transport.rendezvous import Rendezvous


def process_group(plan: Plan, plan_file: Path) -> AbstractContextManager[ProcessGroup]:
    """Join the process group of a launch; the context leaves it at its end.

    Raises:
        LaunchError: this process has no rank, the other processes did not join, or there is no MPI library. Once its
            library is loaded, MPI reports such errors itself.
    """
    me = planned_rank(plan)
    if me is None and not plan.mpi:
        raise LaunchError(
            f"this process has no rank among the {len(plan.world)} processes of {plan_file}: its launcher sets none of "
            f"{', '.join(plan.rank_variables)}; set {OWN_RANK}"
        )
    process = LaunchedProcess(
        None if me is None else me.rank,
        tuple(Peer(member.role, member.index) for member in plan.world),
        tuple(socket.gethostname() if member.host == "localhost" else member.host for member in plan.world),
        plan.fingerprint,
        Rendezvous(plan_file),
    )
    return _transport(plan).group(process)


def _transport(plan: Plan) -> ProcessTransport:
    """Return the transport that the runs of a plan share; load their plugins only if it is one of theirs."""
    first = plan.runs[0]
    registry = active()
    if first.spec["run"]["transport"]["kind"] not in registry.of("transports"):
        texts = [(plugin["file"], plugin["text"]) for plugin in first.spec.get("plugins", ())]
        registry = registry_of(texts, Path(first.directory) / PLUGINS)
    with using(registry):
        # The other components of the run may belong to its plugins, so the whole run is not validated here.
        transport = registry.of("transports")[first.spec["run"]["transport"]["kind"]].model_validate(
            first.spec["run"]["transport"]
        )
    assert isinstance(transport, ProcessTransport), "other runs are not launched"
    return transport
