"""What workers and validators of the synchronous protocol share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator

from hpcps.messages import Flag, Kind, Message, Peer
from hpcps.roles.checkpointing import ECHOED
from hpcps.roles.checks import rejection
from hpcps.roles.events import Compute, Effect, SetDeadline
from hpcps.roles.sync.outbox import Outbox
from hpcps.roles.trainee import Trainee
from hpcps.spec.schema import Run
from hpcps.training.learner import Learner


class SyncTrainee(Trainee):
    """Answers the model of a round, partition by partition, while the model of the next one comes in likewise.

    Subclasses put the answer into `_outbox` and call `end_when_sent` once all of it is there.
    """

    def __init__(self, peer: Peer, run: Run, run_id: str, learner: Learner, receivers: tuple[Peer, ...]) -> None:
        super().__init__(peer, run, run_id, learner)
        self._outbox = Outbox()
        self._receivers = receivers
        self._answering = False

    @property
    def echo(self) -> Flag:
        """What the keeper said of checkpoints with the model of this round, for the other servers."""
        return self._flags & ECHOED

    @abstractmethod
    def close(self) -> Iterator[Effect]:
        """Record the round, and be ready for the next one."""

    @abstractmethod
    def granted(self) -> Iterator[Effect]:
        """Go on after a receiver has taken more of the answer."""

    def take_model(self, source: Peer, message: Message) -> Iterator[Effect]:
        """Take a partition of the next model; adopt it once it is whole.

        A server that is sent the answer has dealt with what the partition is made of: it takes more.
        """
        self._inbox.put(message, self.round + self._answering)
        if not self._answering:
            yield from self._adopt_when_complete()
        elif source in self._receivers:
            yield from self._outbox.dealt_with(source, message.partition + 1)
            yield from self.granted()

    def take(self, source: Peer, message: Message) -> Iterator[Effect]:
        """Take leave to send more; refuse what nobody gets who trains."""
        if message.kind is not Kind.GRANT or source not in self._receivers:
            yield from self.refuse(source, f"a {self.peer.role} gets no {message.kind.name} from {source}")
        elif not self._answering or message.round != self.round:
            yield rejection(source, f"a late message (of round {message.round})")
        else:
            yield from self._outbox.grant(source, message.partition)
            yield from self.granted()

    def end_when_sent(self) -> Iterator[Effect]:
        """Go on to the next round once the answer is sent; write a checkpoint in between if the keeper said so."""
        yield SetDeadline(self._outbox.waiting_for)
        if self._outbox.waiting_for:
            return
        self._outbox.clear()
        self._answering = False
        yield from self.close()
        self.round += 1
        if self._flags & Flag.SNAPSHOT:
            yield from self._measuring.when_over(self._snapshot_and_go_on)
        else:
            yield from self._adopt_when_complete()

    def _snapshot_and_go_on(self) -> Iterator[Effect]:
        yield from self.snapshot(self.round)
        yield from self._adopt_when_complete()

    def _adopt_when_complete(self) -> Iterator[Effect]:
        if self._measuring.holds:
            return  # what is put off, such as a checkpoint, comes first
        yield SetDeadline(self._inbox.waiting_for)
        if self._inbox.complete:
            yield Compute("adopt", self.adopt, elements=self._base.size)
