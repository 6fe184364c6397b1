"""Makes the roles of a run."""

from __future__ import annotations

from hpcps.messages import Peer
from hpcps.roles.alone import Alone
from hpcps.roles.asynchronous.server import Server as AsyncServer
from hpcps.roles.asynchronous.validator import Validator as AsyncValidator
from hpcps.roles.asynchronous.worker import Worker as AsyncWorker
from hpcps.roles.events import Role
from hpcps.roles.resources import ALONE, Resources
from hpcps.roles.sync.server import Server
from hpcps.roles.sync.validator import Validator
from hpcps.roles.sync.worker import Worker
from hpcps.spec.schema import Run
from hpcps.training.catalogue import memory_format
from hpcps.training.learner import Learner

PARTITION = 3 << 17
"""Bytes of a partition where a run is spread over hosts and its file leaves that open."""


def spread(run: Run, hosts: int) -> Run:
    """Return a run with what its file leaves open and its processes' hosts decide; all its processes say the same."""
    if run.transport.partition != "auto" or hosts == 1:
        return run
    return run.model_copy(update={"transport": run.transport.model_copy(update={"partition": PARTITION})})


def make_role(run: Run, run_id: str, peer: Peer, resources: Resources = ALONE) -> Role:
    """Return a role ready to start; a worker's or validator's model and data are loaded, a server needs neither.

    Args:
        run: the run.
        run_id: its id.
        peer: the role.
        resources: what it may use of its machine.

    Raises:
        DataError: if its data are missing or damaged.
    """
    if peer.role == "server":
        if run.train.mode == "async":
            return AsyncServer(peer, run, run_id)
        return Server(peer, run, run_id, resources)
    # Imported here: what trains brings its framework along, which a server has no use for.
    from hpcps.training.build import build_learner

    return make_trainee(run, run_id, peer, build_learner(run, peer.role, peer.index), resources)


def memory_facts(run: Run, role: str, device: str) -> dict[str, str]:
    """Return what a record says of how a role's images and kernels lie in memory, where we choose it."""
    if role == "server" or run.model.backend != "torch":
        return {}
    return {"memory_format": memory_format(run.model.name, device)}


def make_trainee(run: Run, run_id: str, peer: Peer, learner: Learner, resources: Resources = ALONE) -> Role:
    """Return a worker or validator that trains with this learner."""
    if run.topology.alone:
        return Alone(peer, run, run_id, learner)
    if run.train.mode == "sync":
        return (Worker if peer.role == "worker" else Validator)(peer, run, run_id, learner, resources)
    if peer.role == "worker":
        return AsyncWorker(peer, run, run_id, learner, resources)
    return AsyncValidator(peer, run, run_id, learner)
