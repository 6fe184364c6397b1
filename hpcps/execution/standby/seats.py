"""Make the driver of a role, of a server that has a standby, or of a standby."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, Protocol, TypeVar

from hpcps.execution.role_driver import RoleDriver
from hpcps.execution.standby.primary import HeldRecord, PrimaryDriver
from hpcps.execution.standby.standby import KeptRecord, StandbyDriver
from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import RecordWriter
from hpcps.roles.events import Role
from hpcps.roles.resources import Resources
from hpcps.transport.base import MessageTransport, StandbyTransport


class Seat(Enum):
    """What a process is to its role."""

    ALONE = auto()
    """The only process of the role."""
    SERVER = auto()
    """A server that has a standby."""
    STANDBY = auto()
    """The standby of a server, from the beginning."""
    NEW_STANDBY = auto()
    """The standby of a server that has begun, in the place of one that is lost, or has become the server."""

    @property
    def stands_by(self) -> bool:
        """Whether it is a standby."""
        return self in (Seat.STANDBY, Seat.NEW_STANDBY)


_Writer = TypeVar("_Writer", bound=RecordWriter)


class _Open(Protocol):
    def __call__(self, kind: type[_Writer]) -> _Writer:
        """Open the record of the role."""
        ...


@dataclass(frozen=True)
class RecordFile:
    """The record of a role.

    Attributes:
        host: the host of the process.
        clock: returns the seconds of the times in its lines.
        elapsed: the seconds from which they continue now.
        open: opens it.
        begin: writes the `start` line.
    """

    host: str
    clock: Callable[[], float]
    elapsed: float
    open: _Open
    begin: Callable[[RecordWriter], None]


def make_driver(
    seat: Seat,
    role: Role,
    transport: MessageTransport,
    file: RecordFile,
    directory: RunDirectory,
    resources: Resources,
    **options: Any,
) -> RoleDriver:
    """Return the driver of a role, whose record has begun unless the process is a standby.

    Args:
        seat: what the process is to the role.
        role: the role.
        transport: its end of the transport.
        file: its record.
        directory: the folder of the run.
        resources: what the role may use of this machine.
        options: see `RoleDriver`.
    """
    if seat.stands_by:
        assert isinstance(transport, StandbyTransport), "a standby has the transport of one"
        identity = role.peer, role.run_id, file.host, file.clock, file.elapsed
        kept = KeptRecord(*identity, partial(file.open, HeldRecord), file.begin)
        joins = resources if seat is Seat.NEW_STANDBY else None
        return StandbyDriver(role, transport, kept, directory, joins=joins, **options)
    record = file.open(HeldRecord if seat is Seat.SERVER else RecordWriter)
    file.begin(record)
    kind = PrimaryDriver if seat is Seat.SERVER else RoleDriver
    return kind(role, transport, record, directory, **options)
