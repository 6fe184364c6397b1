"""Check a list of nodes from the scheduler."""

from __future__ import annotations

from collections.abc import Sequence

from hpcps.transport.pslite.meta import EVERYONE, SCHEDULER_ID, NodeInfo, NodeRole, members
from hpcps.transport.pslite.settings import Settings


def objection(nodes: Sequence[NodeInfo], me: NodeInfo, settings: Settings, *, first: bool) -> str | None:
    """Return what is wrong with a list of nodes; None if it is valid.

    Args:
        nodes: the list.
        me: the node that receives it.
        settings: the settings of that node.
        first: whether this is its first list, which must contain all nodes; later lists contain replaced nodes.
    """
    everyone = set(members(EVERYONE, settings.servers, settings.workers))
    ids = [node.id for node in nodes]
    if len(set(ids)) != len(ids) or not everyone.issuperset(ids):
        return f"a list of nodes with the ids {ids[:20]}"
    if any(node.role != _role_of(node.id) for node in nodes):
        return "a list of nodes whose ids are not of their roles"
    if not first:
        return None if all(node.is_recovery for node in nodes) else "a second list of nodes"
    if set(ids) != everyone:
        return f"a list of {len(ids)} nodes where there are {len(everyone)}"
    own = sum(node.address == me.address and node.role == me.role for node in nodes)
    return None if own == 1 else f"a list of nodes with this one {own} times"


def _role_of(id_: int) -> NodeRole:
    if id_ == SCHEDULER_ID:
        return NodeRole.SCHEDULER
    return NodeRole.WORKER if id_ % 2 else NodeRole.SERVER
