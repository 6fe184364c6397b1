"""The messages between a server and its standby, which handles the same events in the same order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from hpcps.numerics.layout import Vector
from hpcps.protocol.messages.base import HeaderField, Message


@dataclass(frozen=True, kw_only=True, eq=False)
class Journal(Message, code=58, kind="JOURNAL", sender="server", receiver="its standby", answer="Followed"):
    """The next events of the server, in order.

    Attributes:
        entries: their names, as `order` in the server's record has them; see also `hpcps.execution.standby.journal`.
        lines: the number of lines of this attempt in the server's record.
    """

    entries: tuple[str, ...]
    lines: Annotated[int, HeaderField.INDEX]


@dataclass(frozen=True, kw_only=True, eq=False)
class Followed(Message, code=59, kind="FOLLOWED", sender="standby", receiver="its server"):
    """The standby has got the first entries of the journal, and the messages that they name.

    Attributes:
        count: the number of these entries.
    """

    count: Annotated[int, HeaderField.INDEX]


@dataclass(frozen=True, kw_only=True, eq=False)
class CopyRequest(
    Message, code=60, kind="COPY REQUEST", sender="standby", receiver="its server", answer="CopyOfMessage"
):
    """The standby lacks a message of a lost process, which the server has got.

    Attributes:
        entry: the number of the entry of the journal that names it, from 0.
    """

    entry: Annotated[int, HeaderField.INDEX]


@dataclass(frozen=True, kw_only=True, eq=False)
class CopyOfMessage(Message, code=61, kind="COPY", sender="server", receiver="its standby"):
    """A message that the server has got.

    Attributes:
        entry: see `CopyRequest`.
        header: its header, in hexadecimal digits; empty for what was no message of the run.
        reason: for what was no message of the run: why.
        values: its payload; None if it has none.
    """

    entry: Annotated[int, HeaderField.INDEX]
    header: str
    reason: str = ""
    values: Vector | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class StandbyBegins(Message, code=62, kind="IMAGE", sender="server", receiver="its standby, a new process"):
    """The journal begins after the state in a file, see `hpcps.execution.standby.image`.

    Attributes:
        file: its name in the folder of images.
    """

    file: str
