"""What a role receives: messages, the results of reductions, and what becomes of other processes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from numpy.typing import NDArray

from hpcps.protocol.messages import Message, Peer


class Received(NamedTuple):
    """A message of this run was received, and its sender is who it says.

    Attributes:
        source: its sender.
        message: the message.
        time: when the role got it, in seconds since the role's record began.
        arrived: when it arrived, on the clock that measures pauses. In one process that stands still while any role can
            go on.
    """

    source: Peer
    message: Message
    time: float = 0.0
    arrived: float = 0.0


@dataclass(frozen=True)
class Malformed:
    """What was received from `source` is no message of this run; `arrived` is as in `Received`."""

    source: Peer
    reason: str
    arrived: float = 0.0


REPLACED = "another process has replaced it"
"""As the cause of a `Lost`: that is how it is known."""


class Lost(NamedTuple):
    """A process is lost; what it has sent before may still come.

    Attributes:
        peer: the process.
        cause: why, for people.
        since: when it was lost, on the clock of `arrived`.
        arrived: when the role gets it, as in `Received`.
        incarnation: the number of the process, as in `Replaced`; one with a lower number is lost, too.
    """

    peer: Peer
    cause: str
    since: float = 0.0
    arrived: float = 0.0
    incarnation: int = 0


class Replaced(NamedTuple):
    """The replacement of a lost process has started: what comes of this process from now on is the replacement's.

    Attributes:
        peer: the role, whose name and index the replacement has.
        incarnation: its number: 1 for the first replacement of the process.
        arrived: when the role gets it, as in `Received`.
    """

    peer: Peer
    incarnation: int
    arrived: float = 0.0


Operation = Literal["sum", "max"]
"""How a reduction combines the elements of all processes."""


@dataclass(frozen=True)
class Reduced:
    """A reduction is done; `values` is the array that this process gave to it, with the result in it."""

    values: NDArray[Any]
