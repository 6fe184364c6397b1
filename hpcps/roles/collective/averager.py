"""What a worker needs of a collective exchange: the mean of all updates, added to the model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from hpcps.numerics.layout import Vector
from hpcps.protocol.messages import Flag, Malformed, Peer, Received, Reduced
from hpcps.roles.events import Effect


@dataclass(frozen=True)
class Contribution:
    """What a worker adds to the sum of a round.

    Attributes:
        round: the round.
        values: its update `[d]`, finite; 0 where it sends nothing. The exchange overwrites it.
        count: 1, or 0 if the worker does not take part.
        flags: what the keeper says of checkpoints.
    """

    round: int
    values: Vector
    count: int
    flags: Flag


class Averager(Protocol):
    """Adds the mean of a round's updates to the model of this worker.

    Attributes:
        done: whether no exchange is under way.
        flags: what the keeper said of checkpoints in the last exchange.
        needs: the workers without whose messages the worker cannot go on.
        waiting_for: the workers that the exchange waits for.
    """

    done: bool
    flags: Flag
    needs: tuple[Peer, ...]
    waiting_for: tuple[Peer, ...]

    def start(self) -> Iterator[Effect]:
        """Prepare the exchanges, before the first round."""

    def begin(self, own: Contribution) -> Iterator[Effect]:
        """Begin the exchange of a round."""

    def takes(self, event: Received | Malformed | Reduced) -> bool:
        """Return whether an event belongs to the exchange."""

    def take(self, event: Received | Malformed | Reduced, round: int) -> Iterator[Effect]:
        """Go on with the exchange of a round, which may not have begun yet."""
