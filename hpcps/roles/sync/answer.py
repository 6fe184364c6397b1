"""How a training role answers the model of a round, to receivers that take a few partitions at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from hpcps.protocol.messages import Flag, Kind, Message, Peer
from hpcps.roles.checkpointing import ECHOED
from hpcps.roles.checks import rejection
from hpcps.roles.evaluator import Continuation
from hpcps.roles.events import Effect, Send, SetDeadline
from hpcps.roles.local_training import LocalTraining, Stage

WINDOW = 4
"""How many partitions a sender may be ahead of what its receiver has dealt with: one is combined, one has come, one is
on its way, and one covers the time until the sender hears of progress. So a receiver holds at most that many partitions
of each sender. A larger window does not help: the network then lets one sender fall behind the others by up to the
window, and all wait for that sender at the end of the round."""

_ANSWERING = (Stage.GATHERING, Stage.COMBINING, Stage.SENDING)


def grants(sender: Peer, run_id: str, round: int, dealt_with: int, total: int, to: Sequence[Peer]) -> Iterator[Send]:
    """Let senders go on who get no other message, now that so many of their partitions are dealt with."""
    if dealt_with + WINDOW <= total:
        for peer in to:
            yield Send(peer, Message(Kind.GRANT, sender, run_id, round, partition=dealt_with + WINDOW))


class Answer:
    """Sends the partitions of an answer as fast as their receivers take them, while the next model comes in.

    The round is over once the stage is SENDING and all is sent.
    """

    def __init__(self, training: LocalTraining, receivers: tuple[Peer, ...], record_round: Continuation) -> None:
        self._training = training
        self._receivers = receivers
        self._record_round = record_round
        self._kept: dict[Peer, deque[Message]] = {peer: deque() for peer in receivers}
        self._granted = dict.fromkeys(receivers, WINDOW)

    @property
    def echo(self) -> Flag:
        """What server 0 said of checkpoints with the model of this round, for the other servers."""
        return self._training.flags & ECHOED

    def put(self, to: Peer, message: Message) -> Iterator[Effect]:
        """Send the next partition, now if its receiver takes it."""
        self._kept[to].append(message)
        yield from self._send(to)

    def take_model(self, source: Peer, message: Message) -> Iterator[Effect]:
        """Take a partition of the next model; adopt the model once it is complete.

        A server that gets the answer has dealt with the partitions that it made this one of, and takes more.
        """
        answering = self._training.stage in _ANSWERING
        self._training.inbox.put(message, self._training.round + answering)
        if not answering:
            yield from self._training.adopt_when_complete()
        elif source in self._receivers:
            yield from self._grant(source, message.partition + 1 + WINDOW)

    def take_grant(self, source: Peer, message: Message) -> Iterator[Effect]:
        """Take a receiver's permission to send more of this round's answer."""
        if self._training.stage not in _ANSWERING or message.round != self._training.round:
            yield rejection(source, f"a late message (of round {message.round})")
        else:
            yield from self._grant(source, message.partition)

    def _grant(self, source: Peer, partitions: int) -> Iterator[Effect]:
        self._granted[source] = max(partitions, self._granted[source])
        yield from self._send(source)
        yield from self.end_when_sent()

    def _send(self, to: Peer) -> Iterator[Effect]:
        messages = self._kept[to]
        while messages and messages[0].partition < self._granted[to]:
            yield Send(to, messages.popleft())

    def end_when_sent(self) -> Iterator[Effect]:
        """End the round once the whole answer is sent; write a checkpoint if server 0 said so."""
        training = self._training
        if training.stage is not Stage.SENDING:
            return
        waiting_for = tuple(peer for peer, messages in self._kept.items() if messages)
        yield SetDeadline(waiting_for)
        if waiting_for:
            return
        self._granted = dict.fromkeys(self._receivers, WINDOW)
        yield from self._record_round()
        training.round += 1
        if training.flags & Flag.SNAPSHOT:
            yield from training.snapshot_before_model()
        else:
            training.stage = Stage.WAITING_FOR_MODEL
            yield from training.adopt_when_complete()
