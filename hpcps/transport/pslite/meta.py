"""The metadata of a ps-lite message: everything except its data frames."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum

EMPTY = 2**31 - 1
"""The value of an empty field: no id yet, no application, no timestamp."""

SCHEDULER_ID = 1
SCHEDULERS, SERVERS, WORKERS = 1, 2, 4
"""Groups of nodes; a sum is their union."""
EVERYONE = SCHEDULERS + SERVERS + WORKERS


class NodeRole(IntEnum):
    """The role of a node."""

    SERVER = 0
    WORKER = 1
    SCHEDULER = 2


class Command(IntEnum):
    """The kind of a control message."""

    EMPTY = 0
    TERMINATE = 1
    ADD_NODE = 2
    BARRIER = 3
    ACK = 4
    HEARTBEAT = 5


class DataType(IntEnum):
    """The types of data frames that we send; receivers ignore them."""

    INT32 = 3
    UINT64 = 8
    CHAR = 11


@dataclass(frozen=True)
class NodeInfo:
    """One node in the list of the scheduler.

    Attributes:
        role: its role.
        host: the address or name at which others reach it.
        port: its port there.
        id: its id; `EMPTY` before it has one.
        is_recovery: whether it replaces a dead node.
        customer: the number of its customer, which hpcps ignores.
        wanted: the rank that it asks for among the nodes of its role; `EMPTY` if it takes any. An extension of hpcps.
        incarnation: how many processes had its rank before it, as it says itself. An extension of hpcps.
    """

    role: NodeRole
    host: str
    port: int
    id: int = EMPTY
    is_recovery: bool = False
    customer: int = 0
    wanted: int = EMPTY
    incarnation: int = 0

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        return self.host, self.port

    @property
    def rank(self) -> int:
        """Its rank among the nodes of its role."""
        return rank_of(self.id)

    def __str__(self) -> str:
        name = self.role.name.lower()
        known = "" if self.id == EMPTY or self.role == NodeRole.SCHEDULER else f" {self.rank}"
        return f"{name}{known} at {self.host}:{self.port}"


@dataclass(frozen=True)
class Control:
    """The control part of a message; a message with it is for the node, without it for the application."""

    command: Command
    nodes: tuple[NodeInfo, ...] = ()
    group: int = 0
    signature: int = 0


@dataclass(frozen=True)
class Meta:
    """The first frame of a message.

    Attributes:
        head: a number for the application; in a key-value request, its kind and data type.
        body: a few bytes for the application.
        control: the control part; None for a message of the application.
        request: whether it is a request, not an answer.
        push: whether it brings values.
        pull: whether it asks for values.
        simple_app: whether it is a command (`head`, `body`) without keys and values.
        app: the application; a request goes to the customer with this number at a server.
        customer: the number of the sender's request thread; the answer repeats it.
        timestamp: the number of the request at its sender; the answer repeats it.
        data_types: the types of the data frames.
        priority: larger is more urgent; hpcps ignores it.
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
    """Return the rank of a node id; 0 for the id of the scheduler."""
    return max((id - 8) // 2, 0)


def members(group: int, servers: int, workers: int) -> list[int]:
    """Return the ids of a group of nodes; a number that is no group is the id of a node."""
    if not 0 < group <= EVERYONE:
        return [group]
    ids = [SCHEDULER_ID] if group & SCHEDULERS else []
    if group & SERVERS:
        ids += [id_of(NodeRole.SERVER, rank) for rank in range(servers)]
    if group & WORKERS:
        ids += [id_of(NodeRole.WORKER, rank) for rank in range(workers)]
    return ids
