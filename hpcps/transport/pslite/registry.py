"""The scheduler's list of nodes: who registers, who gets which id, who died and who came back."""

from __future__ import annotations

from dataclasses import replace

from hpcps.transport.pslite.meta import EMPTY, NodeInfo, NodeRole, id_of


class Registry:
    """Collects nodes until all have come, then gives ids; later, gives a dead node's id to the one that replaces it."""

    def __init__(self, servers: int, workers: int) -> None:
        self._expected = {NodeRole.SERVER: servers, NodeRole.WORKER: workers}
        self._coming: list[NodeInfo] = []
        self._waiting: list[NodeInfo] = []
        self.nodes: dict[int, NodeInfo] = {}

    @property
    def complete(self) -> bool:
        """Whether all have come and have an id."""
        return bool(self.nodes)

    def refusal(self, node: NodeInfo) -> str | None:
        """Say why a node cannot be taken in; None if it can."""
        if node.role not in self._expected:
            return f"a second scheduler, at {node.host}:{node.port}"
        if node.id != EMPTY:
            return f"a node that registers has no id yet, this one says {node.id}"
        role = [other for other in self._coming if other.role == node.role]
        if any(other.address == node.address for other in self._coming + self._waiting):
            return f"the {node} registers twice"
        if len(self._waiting) >= len(self.nodes) > 0:
            return f"the {node} is one more than there are nodes to replace"
        if not self.complete and len(role) == self._expected[node.role]:
            return f"the {node} is one more than the {len(role)} expected"
        return None

    def add(self, node: NodeInfo) -> bool:
        """Take in a node that `refusal` has nothing against; say whether all have an id now for the first time."""
        if self.complete:
            self._waiting.append(node)
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
        """Give ids of dead nodes to those that wait for one, and return these.

        A node that comes with the address of another takes that one's id at once: no two processes listen there.
        """
        recovered = []
        for node in list(self._waiting):
            same = [id_ for id_, old in self.nodes.items() if old.role == node.role]
            match = [id_ for id_ in same if self.nodes[id_].address == node.address]
            match += [id_ for id_ in sorted(same) if id_ in dead]
            if match:
                self._waiting.remove(node)
                dead = dead - {match[0]}
                self.nodes[match[0]] = replace(node, id=match[0], is_recovery=True)
                recovered.append(self.nodes[match[0]])
        return recovered

    def missing(self) -> str:
        """Say who has not registered yet."""
        parts = []
        for role, expected in self._expected.items():
            come = sum(node.role == role for node in self._coming)
            if come < expected:
                parts.append(f"{expected - come} of {expected} {role.name.lower()}s")
        return " and ".join(parts)
