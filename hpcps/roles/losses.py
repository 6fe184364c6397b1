"""How a role goes on without a lost process, and has its replacement take part."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcps.numerics.state import Position, State
from hpcps.protocol.messages import Peer, TakePart
from hpcps.protocol.received import Lost, Replaced
from hpcps.roles.events import Effect, Record, Send


class Positions:
    """Where each worker, or validator, was after its last answer that entered the model, for its replacement."""

    def __init__(self) -> None:
        self._sent: dict[Peer, Position] = {}
        self._counted: dict[Peer, Position] = {}

    def sent(self, peer: Peer, position: Position | None) -> None:
        """Note the position of a worker after the answer that has come."""
        if position is not None:
            self._sent[peer] = position

    def count(self, peer: Peer) -> None:
        """Note that the answer of a worker that has come last enters the model."""
        if peer in self._sent:
            self._counted[peer] = self._sent.pop(peer)

    def of(self, peer: Peer) -> Position | None:
        """Return the position of a worker after its last answer that entered the model; None if none did."""
        return self._counted.get(peer)

    @property
    def counted(self) -> dict[str, Position]:
        """The positions by the names of the workers."""
        return {str(peer): position for peer, position in self._counted.items()}

    def forget(self, peer: Peer) -> None:
        """Forget where a worker was: another combiner decides on it."""
        self._sent.pop(peer, None)
        self._counted.pop(peer, None)

    def learn(self, positions: Mapping[str, Position]) -> None:
        """Take the positions that another combiner knows."""
        self._counted |= {Peer.parse(name): position for name, position in positions.items()}

    def state(self) -> State:
        """Return the positions, for a checkpoint."""
        return State(facts=self.counted)

    def restore(self, state: State) -> None:
        """Restore the positions."""
        self._counted.clear()
        self.learn(state.facts)


def record_loss(lost: Lost, **fields: object) -> Record:
    """Return what a combiner records when it goes on without a process."""
    ago = round(lost.arrived - lost.since, 6)
    return Record("lost", {"process": str(lost.peer), "cause": lost.cause, **fields, "ago": ago})


def record_replacement(replaced: Replaced, first: int) -> Record:
    """Return what a combiner records of a replacement that it has take part; `first` is `TakePart.round`."""
    return Record("replaced", {"process": str(replaced.peer), "first": first})


def admit(replaced: Replaced, first: int, position: Position | None, evaluated: int = 0) -> Iterator[Effect]:
    """Have a replacement take part.

    Args:
        replaced: the replacement.
        first: `TakePart.round`.
        position: that of the lost process.
        evaluated: `TakePart.evaluated`.
    """
    yield record_replacement(replaced, first)
    yield take_part(replaced.peer, replaced.incarnation, first, position, evaluated)


def take_part(
    peer: Peer, incarnation: int, first: int, position: Position | None, evaluated: int = 0, **service: Any
) -> Send:
    """Return the message by which a replacement takes part.

    Args:
        peer: the process.
        incarnation: the number of its replacement.
        first: `TakePart.round`.
        position: that of the lost process.
        evaluated: `TakePart.evaluated`.
        **service: `TakePart.since` and `TakePart.validator`.
    """
    part = TakePart(round=first, incarnation=incarnation, position=position, evaluated=evaluated, **service)
    return Send(peer, part)
