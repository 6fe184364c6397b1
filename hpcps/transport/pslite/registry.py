"""The registry of the scheduler: registered nodes, their ids, and replacements of dead nodes."""

from __future__ import annotations

from dataclasses import replace

from hpcps.transport.pslite.meta import EMPTY, NodeInfo, NodeRole, id_of


class NodeRegistry:
    """Collects nodes until all have registered, then assigns ids; later, assigns ids of dead nodes to replacements.

    Attributes:
        nodes: the nodes that have an id.
        waiting: the nodes that registered later and wait for the id of a dead node.
    """

    def __init__(self, servers: int, workers: int) -> None:
        self._expected = {NodeRole.SERVER: servers, NodeRole.WORKER: workers}
        self._coming: list[NodeInfo] = []
        self.waiting: list[NodeInfo] = []
        self.nodes: dict[int, NodeInfo] = {}

    @property
    def complete(self) -> bool:
        """Whether all nodes have registered and have an id."""
        return bool(self.nodes)

    def refusal(self, node: NodeInfo) -> str | None:
        """Return why a node cannot register; None if it can."""
        if node.role not in self._expected:
            return f"a second scheduler, at {node.host}:{node.port}"
        if node.id != EMPTY:
            return f"a node that registers must have no id, this one has {node.id}"
        role = [other for other in self._coming if other.role == node.role]
        if any(other.address == node.address for other in self._coming + self.waiting):
            return f"the {node} registers twice"
        if len(self.waiting) >= len(self.nodes) > 0:
            return f"the {node} is one more than there are nodes to replace"
        if not self.complete and len(role) == self._expected[node.role]:
            return f"the {node} is one more than the {len(role)} expected"
        return None

    def add(self, node: NodeInfo) -> bool:
        """Register a node that `refusal` accepts; return whether it completes the registry."""
        if self.complete:
            self.waiting.append(node)
            return False
        self._coming.append(node)
        if len(self._coming) < sum(self._expected.values()):
            return False
        ranks = dict.fromkeys(self._expected, 0)
        for each in sorted(self._coming, key=lambda each: each.address):
            id_ = id_of(each.role, ranks[each.role])
            ranks[each.role] += 1
            self.nodes[id_] = replace(each, id=id_)
        self._coming.clear()
        return True

    def recover(self, dead: set[int]) -> list[NodeInfo]:
        """Assign the ids of dead nodes to waiting nodes, and return the nodes that got one.

        A waiting node with the address of another node gets the id of that node at once, because two processes cannot
        listen at one address.
        """
        recovered = []
        for node in list(self.waiting):
            same = [id_ for id_, old in self.nodes.items() if old.role == node.role]
            match = [id_ for id_ in same if self.nodes[id_].address == node.address]
            match += [id_ for id_ in sorted(same) if id_ in dead]
            if match:
                self.waiting.remove(node)
                dead = dead - {match[0]}
                self.nodes[match[0]] = replace(node, id=match[0], is_recovery=True)
                recovered.append(self.nodes[match[0]])
        return recovered

    def missing(self) -> str:
        """Return a text about the nodes that have not registered yet."""
        parts = []
        for role, expected in self._expected.items():
            come = sum(node.role == role for node in self._coming)
            if come < expected:
                parts.append(f"{expected - come} of {expected} {role.name.lower()}s")
        return " and ".join(parts)
