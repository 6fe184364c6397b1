"""How a combiner replaces a lost worker, and how the replacement begins."""

from __future__ import annotations

from collections.abc import Iterator

from hpcps.numerics.state import Position, State
from hpcps.protocol.messages import Flag, ModelPartition, ModelReply, Peer, TakePart
from hpcps.protocol.received import Lost, Received, Replaced
from hpcps.roles.asynchronous.worker import AsyncWorker
from hpcps.roles.events import Effect, Event, Record, Send, SetDeadline, Start
from hpcps.roles.messaging_role import MessagingRole
from hpcps.roles.sync.worker import SyncWorker
from hpcps.spec.schema import Run


class Positions:
    """Where each worker of a combiner was after its last answer that entered the model, for its replacement."""

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

    def state(self) -> State:
        """Return the positions, for a checkpoint."""
        return State(facts={str(peer): position for peer, position in self._counted.items()})

    def restore(self, state: State) -> None:
        """Restore the positions."""
        self._counted = {Peer.parse(name): position for name, position in state.facts.items()}


def record_loss(lost: Lost, **fields: object) -> Record:
    """Return what a combiner records when it goes on without a worker."""
    ago = round(lost.arrived - lost.since, 6)
    return Record("lost", {"process": str(lost.peer), "cause": lost.cause, **fields, "ago": ago})


def admit(replaced: Replaced, first: int, position: Position | None) -> Iterator[Effect]:
    """Have a replacement take part.

    Args:
        replaced: the replacement.
        first: `TakePart.round`.
        position: that of the lost worker.
    """
    yield Record("replaced", {"process": str(replaced.peer), "first": first})
    yield Send(replaced.peer, TakePart(round=first, incarnation=replaced.incarnation, position=position))


class ReplacementWorker(MessagingRole):
    """Waits until a combiner says where it begins, and keeps what comes before; then it is a worker like any other.

    Messages have the name of a role, so some that come were for a predecessor.
    """

    def __init__(self, worker: SyncWorker | AsyncWorker, run: Run, combiner: Peer, incarnation: int) -> None:
        """Prepare the replacement that has this number.

        Args:
            worker: the worker that it will be.
            run: the run.
            combiner: the role that says where it begins.
            incarnation: the number.
        """
        super().__init__(worker.peer, run)
        self.device = worker.device
        self._worker, self._combiner, self._incarnation = worker, combiner, incarnation
        self._early: list[Event] = []
        self._first: int | None = None
        self._has_model = False

    @property
    def round(self) -> int:
        """The round or cycle; 0 before the first model: nobody waits for the replacement."""
        return self._worker.round if self._has_model else 0

    def restore(self, state: State) -> None:
        """It begins where its predecessor was, and resumes from no checkpoint."""
        raise AssertionError(f"{self.peer} is a replacement")

    def handle(self, event: Event) -> Iterator[Effect]:
        match event:
            case _ if self._first is not None:
                yield from self._take(event, self._first)
            case Start():
                yield SetDeadline((self._combiner,))
            case Received(source, TakePart() as message) if source == self._combiner:
                if message.incarnation == self._incarnation:
                    self._first = message.round
                    self._worker.take_place(message.round, message.position)
                    early, self._early = self._early, []
                    for each in (Start(), *early):
                        yield from self._take(each, message.round)
            case _:
                self._early.append(event)

    def _take(self, event: Event, first: int) -> Iterator[Effect]:
        """Take an event as the worker, without the models that were for a predecessor."""
        match event:
            case Received(_, ModelPartition() as model) if model.round < first:
                return
            case Received(_, ModelReply() as reply) if reply.request < first and Flag.LAST not in reply.flags:
                return
            case Received(_, ModelPartition() | ModelReply()):
                self._has_model = True
        yield from self._worker.handle(event)
