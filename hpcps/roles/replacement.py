"""How the replacement of a lost worker or validator begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Protocol

from hpcps.numerics.state import State
from hpcps.protocol.messages import Flag, ModelPartition, ModelReply, Peer, TakePart
from hpcps.protocol.received import Received
from hpcps.protocol.roster import Roster
from hpcps.roles.events import Effect, Event, Finish, SetDeadline, Start
from hpcps.roles.messaging_role import MessagingRole
from hpcps.roles.worker import Worker
from hpcps.spec.schema import Run


class ReplaceableRole(Protocol):
    """What a replacement needs of the role that it will be; see `TrainingRole`."""

    peer: Peer
    device: str

    @property
    def round(self) -> int:
        """The round or cycle."""

    def take_place(self, part: TakePart) -> None:
        """Begin in the place of a lost process."""

    def handle(self, event: Event) -> Iterator[Effect]:
        """React to an event."""


class Replacement(MessagingRole):
    """Waits until a combiner says where it begins, and keeps what comes before; then it is a role like any other.

    Messages have the name of a role, so some that come were for a predecessor.

    Attributes:
        residual_from: the position of the checkpoint whose residual and momentum it begins with; None if they are zero.
    """

    def __init__(self, role: ReplaceableRole, run: Run, deciders: tuple[Peer, ...], incarnation: int) -> None:
        """Prepare the replacement that has this number.

        Args:
            role: the worker or validator that it will be.
            run: the run.
            deciders: the roles one of which says where it begins; see `Roster.deciders_of`.
            incarnation: the number.
        """
        super().__init__(role.peer, run)
        self.device = role.device
        self._role, self._deciders, self._incarnation = role, deciders, incarnation
        self._coordinator = Roster.of(run).coordinator
        self._early: list[Event] = []
        self.residual_from: int | None = None
        self._first: int | None = None
        # Of each partition of the servers, the round from which on it is new: a model may come twice.
        self._following: Counter[tuple[Peer, int]] = Counter()
        # The partitions of models that the servers have sent it, and those of the last model.
        self._models: set[tuple[Peer, int]] = set()
        self._last: set[tuple[Peer, int]] = set()

    @property
    def round(self) -> int:
        """The round or cycle; 0 before the first model: nobody waits for the replacement."""
        return self._role.round if self._models else 0

    def restore(self, state: State) -> None:
        """It begins where its predecessor was, and resumes from no checkpoint."""
        raise AssertionError(f"{self.peer} is a replacement")

    def take_over(self, position: int, part: State) -> None:
        """Begin with what a predecessor, a worker, had at the checkpoint at this position."""
        assert isinstance(self._role, Worker), "others begin anew"
        self._role.take_over(part)
        self.residual_from = position

    def handle(self, event: Event) -> Iterator[Effect]:
        match event:
            case Received(source, TakePart() as part) if source in self._deciders:
                if part.incarnation == self._incarnation:
                    if self._first is None:
                        yield from self._begin(part)
                    elif not self._models:  # another decider says so: the first one was lost before the servers knew
                        self._first = part.round
                        self._role.take_place(part)
            case _ if self._first is not None:
                yield from self._take(event, self._first)
            case Start():
                yield SetDeadline(self._deciders)
            case _:
                self._early.append(event)

    def _begin(self, part: TakePart) -> Iterator[Effect]:
        self._first = part.round
        self._role.take_place(part)
        early, self._early = self._early, []
        for each in (Start(), *early):
            for effect in self._take(each, part.round):
                yield effect
                if isinstance(effect, Finish):
                    return  # the run is over

    def _take(self, event: Event, first: int) -> Iterator[Effect]:
        """Take an event as the role, without the models that were for a predecessor."""
        match event:
            case Received(source, ModelPartition() as model):
                which = source, model.partition
                if model.round < max(first, self._following[which]) or self._is_old(*which, model.flags):
                    return
                self._following[which] = model.round + 1
            case Received(source, ModelReply() as model):
                # The request of the last model is the coordinator's.
                numbered = Flag.LAST not in model.flags or self.peer == self._coordinator
                if (numbered and model.request < first) or self._is_old(source, 0, model.flags):
                    return
        yield from self._role.handle(event)

    def _is_old(self, server: Peer, partition: int, flags: Flag) -> bool:
        """Return whether a partition of a model was for a predecessor; else take note of it.

        The first model of each server is whole. A predecessor may have got a difference of the same round, or the same
        model, which a server sends again to a replacement of the coordinator that evaluates the last one.
        """
        if Flag.DIFFERENCE in flags and not any(source == server for source, _ in self._models):
            return True
        if Flag.LAST in flags and (server, partition) in self._last:
            return True
        self._models.add((server, partition))
        if Flag.LAST in flags:
            self._last.add((server, partition))
        return False
