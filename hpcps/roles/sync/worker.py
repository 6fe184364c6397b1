"""The worker of the synchronous protocol."""

from __future__ import annotations

from collections.abc import Iterator

from hpcps.protocol.messages import Kind, Malformed, Message, Peer, Received
from hpcps.protocol.roster import Roster
from hpcps.roles.adversary import AdversaryClient
from hpcps.roles.checks import unwanted
from hpcps.roles.events import Effect, Event, Record, Send, Stage
from hpcps.roles.packer import Packed
from hpcps.roles.resources import ALONE, Resources
from hpcps.roles.sync.partitions import PartitionSender
from hpcps.roles.worker import Worker
from hpcps.spec.schema import Run
from hpcps.training.evaluation import Progress
from hpcps.training.trainer import Trainer


class SyncWorker(Worker):
    """Trains on its shard, sends its update, and takes the new model; the packer keeps what it did not send."""

    def __init__(self, peer: Peer, run: Run, trainer: Trainer, resources: Resources = ALONE) -> None:
        self._receivers = Roster.of(run).combiners_of(peer.index)
        super().__init__(peer, run, trainer, resources, self._receivers)
        self._sender = PartitionSender(self._training, self._receivers, self._record_round)
        self._adversary = AdversaryClient(peer, run, self._packer)

    def _react(self, event: Event) -> Iterator[Effect]:
        match event:
            case Received(source, Message(kind=Kind.MODEL) as message) if source.role == "server":
                yield from self._sender.take_model(source, message)
            case Received(source, Message(kind=Kind.CREDIT) as message) if source in self._receivers:
                yield from self._sender.take_credit(source, message)
            case Received() | Malformed() if self._adversary.answers(event):
                self._packed = self._adversary.take(event)
                yield from self._send_update()
            case Received() | Malformed() if not self._training.takes(event):
                yield from self.refuse(event.source, unwanted(event, "a worker"))
            case _:
                yield from self._go_on(event)

    def take_steps(self, steps: int) -> Progress:
        relabel = self._packer.attacker.relabel(self.round, self._training.log_epoch)
        return self._trainer.train(steps, relabel=relabel, epoch=self.rate_epoch)

    def after_packing(self, packed: Packed) -> Iterator[Effect]:
        """Show the update to the adversary, if there is one and an update; else send it."""
        yield from self._adversary.show(packed, self.round, self._sender.checkpoint_flags, epoch=self.rate_epoch)
        if not self._adversary.waiting:
            yield from self._send_update()

    def _send_update(self) -> Iterator[Effect]:
        """Send the update as fast as it is taken; then wait for the next model."""
        assert self._packed is not None, "it has been packed"
        self._training.stage = Stage.SENDING
        for place in range(len(self._packed.parts)):
            part = yield from self.encoded(self._packed, place)
            shard = part.combiner.index if part.combiner.role == "server" else 0
            message = Message(
                Kind.UPDATE, round=self.round, shard=shard, flags=self._sender.checkpoint_flags, mask=part.mask,
                payload=part.payload, partition=part.number,
            )  # fmt: skip
            yield from self._sender.put(part.combiner, message)
        if not self._packed.parts:
            steps = self._training.abandoned
            note = {} if steps is None else {"abandoned": steps}
            for receiver in self._receivers:
                flags = self._sender.checkpoint_flags
                absent = Message(Kind.ABSENT, round=self.round, flags=flags, note=note)
                yield Send(receiver, absent)
        yield from self._sender.end_when_sent()

    def _record_round(self) -> Iterator[Effect]:
        """Record what was trained and sent."""
        assert self._packed is not None, "it has been sent"
        yield Record("round", self._training.record_fields() | self._packed.fields())
