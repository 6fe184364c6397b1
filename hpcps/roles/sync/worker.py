"""The worker of the synchronous protocol."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from hpcps.numerics.state import State
from hpcps.protocol.messages import Kind, Malformed, Message, Peer, Received
from hpcps.protocol.roster import Roster
from hpcps.roles.checks import unwanted, vetted
from hpcps.roles.events import Compute, Computed, Effect, Event, Pause, Record, Resumed, Send
from hpcps.roles.local_training import LocalTraining, Stage
from hpcps.roles.packer import Packed, Packer
from hpcps.roles.resources import ALONE, Resources
from hpcps.roles.sync.answer import Answer
from hpcps.spec.schema import Run
from hpcps.training.learner import Learner


class Worker:
    """Trains on its shard, sends its update, and takes the new model; the packer keeps what it did not send.

    ZenoPS's c is the base of the training, x is the learner's model, Δ and e are the packer's.
    """

    keeps_checkpoints = False

    def __init__(self, peer: Peer, run: Run, run_id: str, learner: Learner, resources: Resources = ALONE) -> None:
        self.peer = peer
        self.device = learner.device
        self._run_id = run_id
        self._learner = learner
        self._receivers = Roster.of(run).combiners_of(peer.index)
        self._packer = Packer(peer, run, self._receivers, learner.layout, resources.allocate)
        self._training = LocalTraining(
            peer, run, run_id, learner, take_steps=learner.train, after_steps=self._pack,
            kept={"packer": self._packer}, residual=self._packer.delta,
        )  # fmt: skip
        self._answer = Answer(self._training, self._receivers, self._record_round)
        self._packed: Packed | None = None

    @property
    def round(self) -> int:
        """The round it is in."""
        return self._training.round

    def restore(self, state: State) -> None:
        """Go on from a checkpoint."""
        self._training.restore(state)

    def handle(self, event: Event) -> Iterator[Effect]:
        """React to an event."""
        event = vetted(event, self._run_id)
        match event:
            case Received(source, Message(kind=Kind.MODEL) as message) if source.role == "server":
                yield from self._answer.take_model(source, message)
            case Received(source, Message(kind=Kind.GRANT) as message) if source in self._receivers:
                yield from self._answer.take_grant(source, message)
            case Received() | Malformed() if not self._training.takes(event):
                yield from self._training.refuse(event.source, unwanted(event, "a worker"))
            case Computed("pack", packed):
                self._packed = packed
                yield from (Pause(packed.delay),) if packed.delay else self._send_update()
            case Resumed():
                yield from self._send_update()
            case _:
                yield from self._training.handle(event)

    def _pack(self) -> Iterator[Effect]:
        """Make the update of the local steps."""
        self._training.stage = Stage.PACKING
        base = self._training.base
        yield Compute("pack", partial(self._packer.pack, self._learner, base, self.round), elements=base.size)

    def _send_update(self) -> Iterator[Effect]:
        """Send the update as fast as it is taken; then wait for the next model."""
        assert self._packed is not None, "it has been packed"
        self._training.stage = Stage.SENDING
        for part in self._packed.parts:
            shard = part.combiner.index if part.combiner.role == "server" else 0
            message = Message(
                Kind.UPDATE, self.peer, self._run_id, self.round, shard, self._answer.echo, part.mask,
                payload=part.payload, partition=part.number,
            )  # fmt: skip
            yield from self._answer.put(part.combiner, message)
        if not self._packed.parts:
            for receiver in self._receivers:
                absent = Message(Kind.ABSENT, self.peer, self._run_id, self.round, flags=self._answer.echo)
                yield Send(receiver, absent)
        yield from self._answer.end_when_sent()

    def _record_round(self) -> Iterator[Effect]:
        """Record what was trained and sent."""
        assert self._packed is not None, "it has been sent"
        yield Record("round", self._training.record_fields() | self._packed.fields())
