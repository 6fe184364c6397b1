"""What a ps-lite message says of itself: everything but its data frames."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

EMPTY = 2**31 - 1
"""Where the protocol has no value: no id yet, no application, no timestamp."""

SCHEDULER_ID = 1
SCHEDULERS, SERVERS, WORKERS = 1, 2, 4
"""Groups of nodes; they add up."""
EVERYONE = SCHEDULERS + SERVERS + WORKERS


class NodeRole(IntEnum):
    """What a node is."""

    SERVER = 0
    WORKER = 1
    SCHEDULER = 2


class Command(IntEnum):
    """What a control message is."""

    EMPTY = 0
    TERMINATE = 1
    ADD_NODE = 2
    BARRIER = 3
    ACK = 4
    HEARTBEAT = 5


class DataType(IntEnum):
    """The types of data frames that we name; a receiver does not look at them."""

    INT32 = 3
    UINT64 = 8
    CHAR = 11


@dataclass(frozen=True)
class NodeInfo:
    """One node, as the scheduler lists it."""

    role: NodeRole
    host: str
    port: int
    id: int = EMPTY
    is_recovery: bool = False
    customer: int = 0

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return self.host, self.port

    @property
    def rank(self) -> int:
        """Its place among the nodes of its role."""
        return rank_of(self.id)

    def __str__(self) -> str:
        name = self.role.name.lower()
        known = "" if self.id == EMPTY or self.role == NodeRole.SCHEDULER else f" {self.rank}"
        return f"{name}{known} at {self.host}:{self.port}"


@dataclass(frozen=True)
class Control:
    """The part that makes a message one between nodes, rather than between their applications."""

    command: Command
    nodes: tuple[NodeInfo, ...] = ()
    group: int = 0
    signature: int = 0


@dataclass(frozen=True)
class Meta:
    """The first frame of a message.

    Attributes:
        head: what the application makes of it; of a key-value request, its kind and data type.
        body: a few bytes for the application.
        control: None for a message of the application.
        request: a request, rather than the answer to one.
        push: it brings values.
        pull: it asks for values.
        simple_app: a command (`head`, `body`), without keys and values.
        app: the application; requests of one reach the customer of that number at a server.
        customer: the sender's thread of requests; an answer carries it back.
        timestamp: numbers a sender's requests; an answer carries it back.
        data_types: of the data frames.
        priority: larger is more urgent; nothing here heeds it.
    """

    head: int = EMPTY
    body: bytes = b""
    control: Control | None = None
    request: bool = False
    push: bool = False
    pull: bool = False
    simple_app: bool = False
    app: int = EMPTY
    customer: int = EMPTY
    timestamp: int = EMPTY
    data_types: tuple[int, ...] = field(default=())
    priority: int = 0


def id_of(role: NodeRole, rank: int) -> int:
    """Return the id of a node."""
    return SCHEDULER_ID if role == NodeRole.SCHEDULER else 8 + 2 * rank + (role == NodeRole.WORKER)


def rank_of(id: int) -> int:
    """Return the rank that an id stands for; 0 for the scheduler's."""
    return max((id - 8) // 2, 0)


def members(group: int, servers: int, workers: int) -> list[int]:
    """Return the ids of a group of nodes; a number that is no group is a node's id."""
    if group > EVERYONE:
        return [group]
    ids = [SCHEDULER_ID] if group & SCHEDULERS else []
    if group & SERVERS:
        ids += [id_of(NodeRole.SERVER, rank) for rank in range(servers)]
    if group & WORKERS:
        ids += [id_of(NodeRole.WORKER, rank) for rank in range(workers)]
    return ids
