"""The process group: collective operations of all processes of a launch, and how a process joins it."""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NoReturn
from weakref import ref

import numpy as np

from hpcps.errors import RunError
from hpcps.numerics.layout import Vector
from hpcps.protocol.messages import Peer
from hpcps.spec.transport import Transport
from hpcps.transport.backoff import Backoff
from hpcps.transport.base import MessageTransport
from hpcps.transport.device import DeviceLink
from hpcps.transport.rendezvous import Rendezvous


class LostError(RunError):
    """Another process of the group is lost.

    Attributes:
        peer: its role.
        host: its host.
        why: the evidence.
        at: when this process found out, as of `time.time`.
    """

    def __init__(self, peer: Peer, host: str, why: str) -> None:
        super().__init__(f"{peer} on {host} is lost: {why}")
        self.peer, self.host, self.why, self.at = peer, host, why, time.time()


class DeclaredLostError(RunError):
    """The others go on without this process, and with its replacement: it must end."""


class ProcessGroup(ABC):
    """A process group, as one process sees it; all processes call its collective operations in the same order.

    Processes arrive at very different times (some import a framework), so collective operations wait without spinning.
    The operations that are not abstract are for transports without shared memory; they use `collect`. Collective
    operations do not wait for processes that are lost, if the run survives their loss.

    Attributes:
        rank: the number of this process.
        size: the number of processes.
        leader: the rank of the process that prints and writes for all; the run does not survive its loss.
        incarnation: the number of the replacement that this process is; 0 if it is none.
    """

    rank: int
    size: int
    leader: int = 0
    incarnation: int = 0

    @property
    def leads(self) -> bool:
        """Whether this process prints and writes for all."""
        return self.rank == self.leader

    @property
    @abstractmethod
    def transport(self) -> MessageTransport:
        """The transport for messages between roles."""

    def facts(self) -> Mapping[str, object]:
        """Return facts about the communication library, for the provenance."""
        return {}

    @abstractmethod
    def collect(self, text: str) -> list[str]:
        """Exchange a text of at most a few thousand bytes; return the texts of all processes, by rank (allgather).

        The text of a process that is lost is empty.
        """

    def share(self, number: int) -> int:
        """Return the number of the leader on all processes (broadcast)."""
        return int(self.collect(str(int(number)) if self.leads else "")[self.leader])

    def begin(self) -> None:  # noqa: B027 - only a group that survives losses needs to know
        """Begin the roles of a run; the next collective operation is that at their end."""

    def joins_in_time(self) -> bool:
        """Return whether this replacement has come before the run was over."""
        return True

    def is_needed(self) -> bool:
        """Return whether the others may still need this replacement; they do not once they have finished."""
        return True

    def backoff(self) -> Backoff:
        """Return the backoff for waits for a message."""
        return Backoff()

    def allocate(self, size: int) -> Vector:
        """Return an array of `size` float32 values to send from, contents unspecified, valid until the next `settle`.

        Processes that share memory with this one read it in place.
        """
        return np.empty(size, np.float32)

    def in_memory(self) -> list[Peer]:
        """Return the peers that read allocated arrays in place; empty if an array is in ordinary memory."""
        return []

    def ended(self) -> Sequence[Peer]:
        """Return the peers whose processes are known to have ended."""
        return ()

    def exchange(self, link: DeviceLink | None) -> None:
        """Exchange device memory until the next `settle` as a link says; without one, payloads are on the host."""
        assert link is None, "the transport does not offer device memory"

    def barrier(self) -> None:
        """Wait until every process calls this."""
        self.collect("")

    @abstractmethod
    def settle(self) -> None:
        """Wait until every process calls this and every message has arrived; drop messages that no role has received.

        A run may end with messages in transit (a repeated one, or the last update of an asynchronous worker). They must
        not reach the next run.
        """

    def leave(self) -> None:
        """Wait until every process calls this, then leave the group."""
        self.barrier()

    def abandon(self) -> None:  # noqa: B027 - most transports have sent all messages
        """Leave the group at once, without the others, who still get all messages; no effect after leaving."""


def refuse(target: object, names: Iterable[str], message: str) -> None:
    """Make methods of an object raise a `RunError`."""

    def raise_error(*_: object, **__: object) -> NoReturn:
        raise RunError(message)

    for name in names:
        if hasattr(target, name):
            setattr(target, name, raise_error)


def keep_to_this_process(group: ProcessGroup, who: str) -> None:
    """Make the operations of a group raise in a process that this one forks.

    It has the connections of its parent, but not the threads, and must not send in the name of the parent.

    Args:
        group: the group.
        who: the name of this process, such as `worker-3`.
    """
    message = f"{who} has forked this process, which is not a member of its process group: exchange in {who} itself"
    known = ref(group)  # a process may have left this group, and be in another one

    def leave() -> None:
        if (here := known()) is not None:
            refuse(here, ("collect", "share", "barrier", "settle"), message)
            refuse(here.transport, ("send", "receive", "join", "reduce", "settle", "barrier"), message)

    os.register_at_fork(after_in_child=leave)


def unwatched() -> None:
    """Assume that all processes live."""


@dataclass(frozen=True)
class LaunchedProcess:
    """What a process of a launch knows before it can send a message.

    Attributes:
        rank: its number; None if its launcher does not say it, because MPI does.
        world: the role of every rank.
        hosts: the host of every rank.
        launch: a text that only the processes of this launch know.
        rendezvous: where one process announces its address to the others.
        replaceable: the ranks that may be lost; none if every lost process ends the launch.
        silence: seconds without a sign of life after which one of these is lost.
        leader: the rank of the process that prints and writes for all.
        incarnation: the number of the replacement that this process is; 0 if it is none.
        watch: called again and again while a collective operation waits; raises `LostError` if another process gives no
            sign of life.
        interrupt: called again and again while this process waits for messages, or for others to join; raises
            `LostError` if all processes shall join each other anew, because one is lost.
    """

    rank: int | None
    world: tuple[Peer, ...]
    hosts: tuple[str, ...]
    launch: str
    rendezvous: Rendezvous
    watch: Callable[[], None] = unwatched
    interrupt: Callable[[], None] = unwatched
    replaceable: frozenset[int] = frozenset()
    silence: float = math.inf
    leader: int = 0
    incarnation: int = 0


class ProcessTransport(Transport):
    """A transport between processes, one for each role. A subclass adds `kind` and its own keys."""

    @abstractmethod
    def group(self, process: LaunchedProcess) -> AbstractContextManager[ProcessGroup]:
        """Join the process group of a launch; the context leaves it at its end, also after an exception.

        Raises:
            LaunchError: the other processes did not join, or a library is missing.
        """

    @classmethod
    def faults(cls) -> list[str]:
        missing = [] if "processes" in cls.offers else ['its offers lack "processes"']
        return [*super().faults(), *missing]
