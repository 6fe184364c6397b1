"""Makes the roles of a run."""

from __future__ import annotations

from hpcps.messages import Peer
from hpcps.roles.events import Role
from hpcps.roles.sync.server import Server
from hpcps.spec.schema import Run


def make_role(run: Run, run_id: str, peer: Peer) -> Role:
    """Return a role ready to start; a worker's or validator's model and data are loaded, a server needs neither.

    Raises:
        DataError: if its data are missing or damaged.
    """
    if peer.role == "server":
        return Server(peer, run, run_id)
    # Imported here: what trains brings its framework along, which a server has no use for.
    from hpcps.roles.sync.validator import Validator
    from hpcps.roles.sync.worker import Worker
    from hpcps.training.build import build_learner

    learner = build_learner(run, peer.role, peer.index)
    return (Worker if peer.role == "worker" else Validator)(peer, run, run_id, learner)
