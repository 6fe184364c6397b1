"""The image of a server: all that a new process needs to handle its further events in its place.

A role keeps nothing outside of itself between two events, so the image of one is the role as it is then, pickled. It is
a file of the run's folder, like the plugins there: what is read is as trustworthy as the folder.
"""

from __future__ import annotations

import io
import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpcps.errors import RunError
from hpcps.execution.standby.post import Place
from hpcps.protocol.messages import Peer
from hpcps.records.files import write_whole
from hpcps.roles.events import Event, Role
from hpcps.roles.resources import Resources
from hpcps.transport.base import KeptMessage

_RESOURCES = "resources"


@dataclass(frozen=True)
class Image:
    """A server between two events.

    Attributes:
        role: its role.
        account: what its next record line counts.
        lines: the number of lines of its record in this attempt.
        due: the place of the next message of each role.
        lost: the processes of whose loss it knows.
        sent: the number of messages to each role.
        kept: those of them that have not been sent to their receivers. The receivers have got all others.
        alarms: the seconds until its timers, and their events.
        waiting_for: the peers that it waits for.
        limited: whether that has a limit.
    """

    role: Role
    account: Mapping[str, Any]
    lines: int
    due: Mapping[Peer, Place]
    lost: frozenset[Peer]
    sent: Counter[Peer]
    kept: Mapping[Peer, Sequence[KeptMessage]]
    alarms: tuple[tuple[float, Event], ...]
    waiting_for: tuple[Peer, ...]
    limited: bool

    def write(self, path: Path) -> None:
        """Write it to a file.

        Raises:
            RunError: it cannot be written.
        """
        buffer = io.BytesIO()
        _ImageWriter(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(self)
        try:
            path.parent.mkdir(exist_ok=True)
            write_whole(path, buffer.getvalue())
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror}; free disk space") from error

    @staticmethod
    def read(path: Path, resources: Resources) -> Image:
        """Read it, and remove the file.

        Args:
            path: the file.
            resources: what the role may use of this machine.

        Raises:
            RunError: it cannot be read.
        """
        try:
            content = path.read_bytes()
            path.unlink()
        except OSError as error:
            raise RunError(f"cannot read {path}: {error.strerror}") from error
        image = _ImageReader(io.BytesIO(content), resources).load()
        assert isinstance(image, Image), "it has been written by `write`"
        return image


class _ImageWriter(pickle.Pickler):
    """Leaves out what belongs to a machine."""

    def persistent_id(self, obj: object) -> str | None:
        return _RESOURCES if isinstance(obj, Resources) else None


class _ImageReader(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, resources: Resources) -> None:
        super().__init__(file)
        self._resources = resources

    def persistent_load(self, pid: str) -> Resources:
        return self._resources
