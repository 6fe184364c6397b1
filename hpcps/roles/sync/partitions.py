"""The partitions of a round: how a role sends them, and how a combiner collects them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from hpcps.aggregation.collector import Collector
from hpcps.aggregation.encoding import UpdateDecoder
from hpcps.aggregation.outcomes import BlockOutcomes, Tally
from hpcps.numerics.layout import Mask, Vector, hexadecimal
from hpcps.numerics.state import Kept, Position
from hpcps.numerics.updates import Destination
from hpcps.protocol.messages import Absent, CombinedUpdate, Credit, Flag, ModelPartition, Peer, Update, WriteCheckpoint
from hpcps.protocol.partitioning import Partition
from hpcps.roles.checkpointing import CHECKPOINT_FLAGS
from hpcps.roles.checks import not_finite, rejection, wrong_size
from hpcps.roles.evaluation import Continuation
from hpcps.roles.events import Effect, Send, SetDeadline
from hpcps.roles.local_training import LocalTraining
from hpcps.roles.stages import Stage, Trigger
from hpcps.roles.weights import ALIKE, UpdateWeights
from hpcps.rules import Combined, Context, Rule
from hpcps.rules.base import combine_received

_NOTHING: Vector = np.zeros(0, np.float32)
WINDOW = 4
"""How many partitions a sender may be ahead of what its receiver has dealt with: one is combined, one has come, one is
on its way, and one covers the time until the sender hears of progress. So a receiver holds at most that many partitions
of each sender. A larger window does not help: the network then lets one sender fall behind the others by up to the
window, and all wait for that sender at the end of the round."""

Answer = Update | Absent | CombinedUpdate
"""What a combiner collects."""

_ANSWERING = (Stage.GATHERING, Stage.COMBINING, Stage.SENDING)


def credits(dealt_with: int, total: int, to: Mapping[Peer, int]) -> Iterator[Send]:
    """Permit senders to send `WINDOW` partitions more than the combiner has dealt with.

    A partition of the next model permits the same. So this is for senders that get none from this combiner.

    Args:
        dealt_with: the number of combined partitions.
        total: the number of partitions.
        to: the senders, with the rounds of their updates.
    """
    if dealt_with + WINDOW <= total:
        for peer, round in to.items():
            yield Send(peer, Credit(round=round, partitions=dealt_with + WINDOW))


class PartitionSender:
    """Sends the partitions of an answer as fast as their receivers take them, while the next model comes in.

    The answer to a model is a worker's update, or a validator's combined update. The round is over once the stage is
    SENDING and all is sent.
    """

    def __init__(
        self,
        training: LocalTraining,
        receivers: tuple[Peer, ...],
        record_round: Continuation,
        present: Callable[[Peer], Peer] = lambda receiver: receiver,
    ) -> None:
        """Prepare the answers of a role.

        Args:
            training: its training.
            receivers: the combiners or servers.
            record_round: records the round once all is sent.
            present: returns the role that takes the place of a receiver at present.
        """
        self._training, self._present = training, present
        self._receivers = receivers
        self._record_round = record_round
        self._unsent: dict[Peer, deque[Update | CombinedUpdate]] = {peer: deque() for peer in receivers}
        self._credited = dict.fromkeys(receivers, WINDOW)
        # With a quorum: what server 0 says of a checkpoint to a late worker; the last one that was written.
        self._due: WriteCheckpoint | None = None
        self._written = 0

    @property
    def checkpoint_flags(self) -> Flag:
        """The flags for checkpoints that server 0 sent with the model of this round; they go to the other servers."""
        return self._training.flags & CHECKPOINT_FLAGS

    def put(self, to: Peer, answer: Update | CombinedUpdate) -> Iterator[Effect]:
        """Send the next partition, now if its receiver takes it."""
        self._unsent[to].append(answer)
        yield from self._send(to)

    def receive_model(self, source: Peer, model: ModelPartition) -> Iterator[Effect]:
        """Take a partition of the next model; adopt the model once it is complete.

        A partition from a receiver of this role's answers is also a credit: the receiver has combined the partition
        with the same number, so this role may send `WINDOW` partitions more.
        """
        answering = self._training.stage in _ANSWERING
        self._training.inbox.put(source, model, self._training.round + answering)
        if not answering:
            yield from self._training.adopt_when_complete()
        elif source in self._receivers:
            yield from self._credit(source, model.partition + 1 + WINDOW)

    def take_credit(self, source: Peer, credit: Credit) -> Iterator[Effect]:
        """Take a receiver's permission to send more of this round's answer."""
        if credit.round < self._training.round <= self._written:
            return  # a late worker has sent all of its answer before the checkpoint
        if self._training.stage not in _ANSWERING or credit.round != self._training.round:
            yield rejection(source, f"a late message (of round {credit.round})")
        else:
            yield from self._credit(source, credit.partitions)

    def _credit(self, source: Peer, partitions: int) -> Iterator[Effect]:
        self._credited[source] = max(partitions, self._credited[source])
        yield from self._send(source)
        yield from self.end_when_sent()

    def _send(self, to: Peer) -> Iterator[Effect]:
        messages = self._unsent[to]
        while messages and (self._due is not None or messages[0].partition < self._credited[to]):
            yield Send(self._present(to), messages.popleft())

    def take_checkpoint(self, due: WriteCheckpoint) -> Iterator[Effect]:
        """Write a checkpoint that the adopted model did not announce, because this worker was late.

        It is written once the answer is made and sent: all of its partitions may be sent, also to a combiner that takes
        them only in a later round, or ends.
        """
        if due.position <= self._written:
            return  # the model announced it
        training = self._training
        self._due = due
        if training.stage is Stage.WAITING_FOR_MODEL:
            yield from self._end_round()
        else:
            for receiver in self._receivers:
                yield from self._send(receiver)
            yield from self.end_when_sent()

    def end_when_sent(self) -> Iterator[Effect]:
        """End the round once the whole answer is sent; write a checkpoint if server 0 said so."""
        training = self._training
        if training.stage is not Stage.SENDING:
            return
        waiting_for = tuple(peer for peer, messages in self._unsent.items() if messages)
        yield SetDeadline(waiting_for)
        if waiting_for:
            return
        self._credited = dict.fromkeys(self._receivers, WINDOW)
        yield from self._record_round()
        training.round += 1
        yield from self._end_round()

    def _end_round(self) -> Iterator[Effect]:
        """Wait for the next model, after a checkpoint if one is due."""
        training, due, self._due = self._training, self._due, None
        position = training.round if due is None else due.position
        if due is not None:
            training.flags = due.flags
        if training.flags & Flag.SNAPSHOT and position > self._written:
            self._written = position
            yield from training.snapshot_before_model(position)
        else:
            training.on(Trigger.ALL_SENT)
            yield from training.adopt_when_complete()


class PartitionCollector:
    """Collects the partitions of every sender. A sender sends them in order, or says once that it is absent.

    A partition is combined in the order of the senders, whatever the order of arrival, as soon as all have sent it. The
    payloads are not copied: no sender changes its update before it has the next model.

    Attributes:
        current: the number of the partition that is combined next.
        tally: the counts of the last `report`.
        excluded: the senders whose answers count as absent from now on; they are waited for like absent ones.
    """

    def __init__(
        self,
        share: Sequence[Peer],
        partitions: Sequence[Partition],
        first_block: int = 0,
        decoder: UpdateDecoder | None = None,
    ) -> None:
        """Begin to collect the first round.

        Args:
            share: the senders.
            partitions: the partitions of an update.
            first_block: the number of the first block of the partitions in the whole model.
            decoder: decodes updates; by default they are sent as they are.
        """
        self._first_block, self._decoder = first_block, decoder or UpdateDecoder()
        self._share = tuple(share)
        self._row = {peer: row for row, peer in enumerate(self._share)}
        self._partitions = partitions
        # How many partitions of each sender have not come.
        self._missing = dict.fromkeys(self._share, self.total)
        self._collector: Collector[tuple[Mask, Vector]] = Collector(self._share)
        self.tally = Tally()
        self.excluded: set[Peer] = set()
        self.clear()

    def clear(self) -> None:
        """Begin to collect the next round."""
        count = len(self._share)
        self.current = 0
        self._expect_updates()
        self._present = np.zeros(count, np.bool_)
        self._outcomes = BlockOutcomes(count, max(partition.blocks.stop for partition in self._partitions))
        self._malformed = 0

    def exclude(self, sender: Peer) -> None:
        """Exclude a sender, whose answer to the present round no partition of the result contains so far."""
        self.excluded.add(sender)
        self._present[self._row[sender]] = False

    def _expect_updates(self) -> None:
        """Expect a whole update of every sender."""
        self._missing = dict.fromkeys(self._share, self.total)
        for peer in self._share:
            self._collector.forget(peer)

    def begin(self, round: int, serves: Sequence[Peer] | None = None) -> None:
        """Begin at a round whose model every sender gets; or only those that it serves, see `QuorumCollector`."""

    @property
    def kept(self) -> Mapping[str, Kept]:
        """What a checkpoint contains of the collector between two rounds."""
        return {}

    def close(self, round: int, flags: Flag) -> Iterator[Effect]:
        """Close the round for further senders if that is due; without a quorum it waits for all senders."""
        yield from ()

    def elapsed(self, round: int) -> None:
        """Note that a pause is over."""

    @property
    def answered(self) -> tuple[int, ...] | None:
        """With a quorum, or if workers may be lost: the workers that get the next model; else None."""
        return None

    @property
    def lost(self) -> tuple[int, ...]:
        """The workers that were lost since the last round closed."""
        return ()

    @property
    def counted(self) -> dict[str, Position]:
        """If workers may be lost: where those whose answers are in the round are after these answers, by name."""
        return {}

    def updates(self, round: int) -> dict[Peer, int]:
        """Return the senders that take part in a round, with the rounds of their updates."""
        return dict.fromkeys(self.present, round)

    @property
    def total(self) -> int:
        """The number of partitions."""
        return len(self._partitions)

    @property
    def partition(self) -> Partition:
        """The partition that is combined next."""
        return self._partitions[self.current]

    @property
    def ready(self) -> bool:
        """Whether there is a next partition, and all senders have sent it."""
        return not self.done and not self.waiting_for

    @property
    def done(self) -> bool:
        """Whether all partitions are combined."""
        return self.current == self.total

    @property
    def waiting_for(self) -> tuple[Peer, ...]:
        """The senders that have not sent the partition that is combined next."""
        owed = self.total - self.current
        return tuple(peer for peer, missing in self._missing.items() if missing == owed) if owed else ()

    @property
    def present(self) -> tuple[Peer, ...]:
        """The senders that take part in the round."""
        return tuple(peer for peer, present in zip(self._share, self._present, strict=True) if present)

    @property
    def elements(self) -> int:
        """The number of elements that are combined next."""
        return int(self._present.sum()) * self.partition.layout.size

    def put(self, source: Peer, answer: Answer, round: int, arrived: float = 0.0) -> Iterator[Effect]:
        """Take a sender's partition, or that it is absent; a bad one is recorded and counts as skipped.

        Args:
            source: the sender.
            answer: its message.
            round: the round of the combiner.
            arrived: when the message arrived, see `Received`.
        """
        missing = self._missing.get(source, 0)
        number = self.total - missing
        partition = number if isinstance(answer, Absent) else answer.partition
        if not missing or (answer.round, partition) < (round, number):
            yield rejection(source, f"a second or late message (of round {answer.round})")
            return
        reason: str | None = None
        if answer.round > round:
            reason = f"it is of round {answer.round}"
        elif isinstance(answer, Absent) and number:
            reason = f"it says that its sender is absent, after {number} partitions"
        elif isinstance(answer, Absent):
            self._miss(source, answer)
        elif partition != number:
            reason = f"it is partition {partition}, and {number} comes next"
        elif isinstance(answer, CombinedUpdate):
            layout, values = self._partitions[number].layout, answer.values
            if (reason := wrong_size(values, layout.size)) is None:
                self._take(source, np.ones(len(layout.blocks), np.bool_), values)
        else:
            values, reason = self._decoder(source, answer.mask, answer.values, self._partitions[number])
            if reason is None:
                self._take(source, answer.mask, values)
        if reason:
            yield from self.refuse(source, reason, type(answer), arrived)

    def refuse(
        self, source: Peer, reason: str, kind: type[Answer] | None = None, arrived: float = 0.0
    ) -> Iterator[Effect]:
        """Count a bad message as a partition with every block skipped, if its sender still owes one.

        If it may be an ABSENT, no other message may follow in this round: then the whole update counts as skipped.

        Args:
            source: the sender.
            reason: what is wrong with the message.
            kind: its class, if it is one that the combiner gets; else None.
            arrived: when the message arrived, see `Received`.
        """
        yield rejection(source, reason)
        self._malformed += 1
        missing = self._missing.get(source, 0)
        first = source.role == "worker" and missing == self.total
        absent = kind is Absent or (kind is None and first)
        start = self.total - missing
        for partition in self._partitions[start : self.total if absent else start + 1]:
            self._take(source, np.zeros(len(partition.layout.blocks), np.bool_), _NOTHING)

    def _miss(self, source: Peer, absent: Absent) -> None:
        """Note that a sender is absent."""
        self._missing[source] = 0

    def _take(self, source: Peer, mask: Mask, payload: Vector) -> None:
        number = self.total - self._missing[source]
        self._collector.put(source, number, number + 1, (mask, payload))
        self._present[self._row[source]] = source not in self.excluded
        self._missing[source] -= 1

    def combine_next(self, rule: Rule, context: Context, to: Destination, weights: UpdateWeights = ALIKE) -> Combined:
        """Combine the finite blocks of the next partition.

        Args:
            rule: the rule.
            context: see `Rule.combine`.
            to: where the result is written; on a device if the updates are combined there.
            weights: how much the updates count.
        """
        partition = self.partition
        taken = self._collector.take(self.current, self.current + 1, self.present)[1].values()
        sent = np.array([mask for mask, _ in taken], np.bool_).reshape(len(taken), len(partition.layout.blocks))
        payloads = [payload for _, payload in taken]
        combined, rejected = combine_received(
            rule, partition.layout, payloads, sent, context, to, weights.of(self.present)
        )
        # A slice avoids a copy where all are present.
        rows = slice(None) if len(taken) == len(self._present) else np.flatnonzero(self._present)
        self._outcomes.add(rows, partition.blocks, sent, rejected, combined, rule)
        self.current += 1
        return combined

    def report(self) -> tuple[dict[str, object], list[Effect]]:
        """Return the fields of the round's record, and a record for every sender whose blocks were rejected."""
        outcomes = self._outcomes
        self.tally = outcomes.tally(self._present)
        kept_out = outcomes.kept_out
        participants = [peer.index for peer in self.present]
        fields: dict[str, object] = {
            "participants": participants,
            "absent": [peer.index for peer in self._share if peer.index not in participants],
            **self.tally.fields(),
            "malformed": self._malformed,
            **({"excluded": sorted(peer.index for peer in self.excluded)} if self.excluded else {}),
            "blocks_below_bound": outcomes.blocks_below_bound,
            "kept_out": None
            if kept_out is None
            else [[peer.index, hexadecimal(row, self._first_block)] for peer, row in self._by_sender(kept_out)],
        }
        return fields, [not_finite(peer, blocks) for peer, blocks in self._by_sender(outcomes.not_finite)]

    def _by_sender(self, blocks: Mask) -> Iterator[tuple[Peer, Mask]]:
        """Yield the senders of which there are such blocks, with them."""
        return ((peer, row) for peer, row in zip(self._share, blocks, strict=True) if row.any())
