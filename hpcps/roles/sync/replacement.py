"""The replacement of a lost worker of the synchronous protocol."""

from __future__ import annotations

from collections.abc import Iterator

from hpcps.protocol.messages import ModelPartition, Peer, TakePart
from hpcps.protocol.received import Received
from hpcps.roles.events import Effect, Event, SetDeadline, Start
from hpcps.roles.resources import ALONE, Resources
from hpcps.roles.sync.worker import SyncWorker
from hpcps.spec.schema import Run
from hpcps.training.trainer import Trainer


class ReplacementWorker(SyncWorker):
    """Waits until a combiner says where it begins, and keeps what comes before; then it is a worker like any other.

    Messages have the name of a role, so some that come were for a predecessor.
    """

    def __init__(
        self, peer: Peer, run: Run, trainer: Trainer, resources: Resources = ALONE, incarnation: int = 1
    ) -> None:
        """Prepare the replacement that has this number."""
        super().__init__(peer, run, trainer, resources)
        self._incarnation = incarnation
        self._early: list[Event] = []
        self._first: int | None = None

    def handle(self, event: Event) -> Iterator[Effect]:
        first = self._first
        match event:
            case Received(_, ModelPartition(round=round)) if first is not None and round < first:
                pass  # it was for a predecessor
            case _ if first is not None:
                yield from super().handle(event)
            case Start():
                yield SetDeadline(self._receivers[:1])
            case Received(source, TakePart() as message) if source == self._receivers[0]:
                if message.incarnation == self._incarnation:
                    yield from self._take_part(message)
            case _:
                self._early.append(event)

    def _take_part(self, message: TakePart) -> Iterator[Effect]:
        """Begin where the predecessor was, with the model of a round."""
        self._first = message.round
        self.go_to(message.round, message.position)
        early, self._early = self._early, []
        for event in (Start(), *early):
            yield from self.handle(event)
