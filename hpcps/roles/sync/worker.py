"""The worker of the synchronous protocol."""

from __future__ import annotations

from collections.abc import Iterator

from hpcps.numerics.state import Position, State
from hpcps.protocol.messages import (
    Absent,
    AuditRequest,
    Credit,
    Flag,
    ModelPartition,
    Peer,
    ProbeStep,
    SendAgain,
    TakePart,
    Update,
    WriteCheckpoint,
)
from hpcps.protocol.received import Lost, Malformed, Received, Reduced, Replaced
from hpcps.protocol.roster import EVALUATOR, SERVER_0, Roster
from hpcps.roles.adversary import AdversaryClient
from hpcps.roles.checks import unwanted
from hpcps.roles.events import Computed, Effect, Event, Idle, Pause, Record, Resumed, Send, Start, StopRequested
from hpcps.roles.resources import ALONE, Resources
from hpcps.roles.stages import SYNC_WORKER, Trigger
from hpcps.roles.sync.audit import Commitments
from hpcps.roles.sync.last_answer import LastAnswer
from hpcps.roles.sync.partitions import PartitionSender
from hpcps.roles.sync.shared_batches import samples_of
from hpcps.roles.update.packer import Packed
from hpcps.roles.worker import Worker
from hpcps.spec.schema import Run
from hpcps.training.evaluation import Progress
from hpcps.training.trainer import Trainer


class SyncWorker(Worker):
    """Trains on its shard, sends its update, and takes the new model; the packer keeps what it did not send."""

    stages = SYNC_WORKER

    def __init__(self, peer: Peer, run: Run, trainer: Trainer, resources: Resources = ALONE) -> None:
        self._roster = Roster.of(run)
        self._receivers = self._roster.combiners_of(peer.index)
        super().__init__(peer, run, trainer, resources, self._receivers)
        self._sender = PartitionSender(self._training, self._receivers, self._record_round, self._to)
        self._adversary = AdversaryClient(peer, run, self._packer)
        self._answer = LastAnswer() if run.has_quorum else None
        self._replicas = resources.replicas
        self._commitments = Commitments(trainer, self._packer) if run.audits else None
        self._owes = self._presents = False
        self._now = 0.0
        # Those that have the model that was adopted last.
        self._validators: tuple[int, ...] | None = None

    def state(self, evaluated: int) -> State:
        state = super().state(evaluated)
        return state if self._answer is None else state.having(answer=self._answer.state())

    def restore(self, state: State) -> None:
        super().restore(state)
        if self._answer is not None and "answer" in state.facts:  # not in a checkpoint of an earlier version
            self._answer.restore(state.part("answer"))

    def _position(self, to: Peer) -> Position | None:
        """Return where a replacement goes on after this update, for the combiner that decides who is in."""
        return self.position() if to == self._receivers[0] else None

    def take_place(self, part: TakePart) -> None:
        """Begin in the place of a lost worker."""
        training = self._training
        training.take_place(part.incarnation)
        if training.is_coordinator and not part.round:
            return  # the servers have no model yet
        # Servers may lack the initial model: a coordinator that was lost has sent it to some only.
        self._presents = training.is_coordinator
        self.go_to(part.round, part.position, part.evaluated)

    def _to(self, receiver: Peer) -> Peer:
        """Return the combiner that takes an answer: the present validator of this worker, if its own one is lost."""
        if self._validators is None:
            return receiver
        other = self._roster.validator_of(self.peer.index, self._validators)
        assert other is not None, "somebody serves the workers that get a model"
        return Peer("validator", other)

    def handle(self, event: Event) -> Iterator[Effect]:
        if not isinstance(event, (Reduced, Idle, StopRequested)):
            self._now = event.arrived
        match event:
            case Start() if self._replicas is not None:
                yield Send(self._receivers[0], ProbeStep(checksum=self._replicas.probe))
                yield from self._go_on(event)
            case Start() if self._presents:
                yield from self.initial_messages(statistics=False)
                yield from self._go_on(event)
            case Received(source, AuditRequest(round=round)) if self._commitments and source in self._receivers:
                yield Send(source, self._commitments.hand_over(round))
            case Computed("adopt"):
                if self._commitments is not None:
                    self._commitments.begin()
                self._learn_who_is_there()
                if self._answer is not None:
                    self._answer.begin(self.round, self._now)
                yield from self._training.handle(event)
            case Received(source, WriteCheckpoint() as due) if source == SERVER_0:
                yield from self._sender.take_checkpoint(due)
            case Received(source, SendAgain(age=age)) if source == SERVER_0 and self._answer:
                self._owes = True
                yield Pause(max(self._answer.took - age, 0.0))
            case Resumed() if self._owes:
                yield from self._send_again()
            case Received(source, ModelPartition() as model) if source.role == "server":
                yield from self._sender.receive_model(source, model)
            case Received(source, Credit() as credit) if source in self._receivers:
                yield from self._sender.take_credit(source, credit)
            case Received() | Malformed() if self._adversary.answers(event):
                self._packed = self._adversary.take(event)
                yield from self._send_update()
            case Lost() | Replaced() if event.peer == EVALUATOR:
                yield from self._training.note_evaluator(event)
            case Replaced():
                pass  # the record says from which message on a validator is its replacement
            case Received() | Malformed() if not self._training.takes(event):
                yield from self.refuse(event.source, unwanted(event, "a worker"))
            case _:
                yield from self._go_on(event)

    def _learn_who_is_there(self) -> None:
        """Take note of who has the model that is adopted, as it says."""
        inbox = self._training.inbox
        self._validators = inbox.validators
        if inbox.workers is not None and Flag.LAST not in inbox.flags:
            self._training.take_batches(samples_of(self._run, self.peer, inbox.workers, inbox.validators))

    def take_steps(self, steps: int) -> Progress:
        relabel = self._packer.attacker.relabel(self.round, self._training.epochs_over)
        return self._trainer.train(steps, relabel=relabel, epoch=self.rate_epoch)

    def duration_factor(self) -> float:
        return self._packer.attacker.duration_factor(self.round, self._training.epochs_over)

    def after_packing(self, packed: Packed) -> Iterator[Effect]:
        """Show the update to the adversary, if there is one and an update; else send it."""
        yield from self._adversary.show(packed, self.round, self._sender.checkpoint_flags, epoch=self.rate_epoch)
        if not self._adversary.waiting:
            yield from self._send_update()

    def _send_update(self) -> Iterator[Effect]:
        """Send the update as fast as it is taken; then wait for the next model."""
        assert self._packed is not None, "it has been packed"
        self._training.on(Trigger.UPDATE_READY)
        if self._answer is not None:
            self._answer.end(self._now)
        count = len(self._packed.parts)
        for place in range(count):
            part = yield from self.encoded(self._packed, place)
            commitment = self._commit() if place == count - 1 else None
            shard = part.combiner.index if part.combiner.role == "server" else 0
            update = Update(
                round=self.round, shard=shard, partition=part.number, flags=self._sender.checkpoint_flags,
                mask=part.mask, position=self._position(part.combiner), commitment=commitment, values=part.payload,
            )  # fmt: skip
            self._note(part.combiner, update)
            yield from self._sender.put(part.combiner, update)
        if not self._packed.parts:
            flags, abandoned = self._sender.checkpoint_flags, self._training.abandoned
            commitment = self._commit()
            for receiver in self._receivers:
                position = self._position(receiver)
                absent = Absent(
                    round=self.round, flags=flags, abandoned=abandoned, position=position, commitment=commitment
                )
                self._note(receiver, absent)
                yield Send(self._to(receiver), absent)
        yield from self._sender.end_when_sent()

    def _commit(self) -> str | None:
        """Return the commitment to the state after the update, all of which is encoded, if there are audits."""
        return None if self._commitments is None else self._commitments.commit()

    def _note(self, to: Peer, answer: Update | Absent) -> None:
        if self._answer is not None:
            self._answer.messages.append((to, answer))

    def _send_again(self) -> Iterator[Effect]:
        """Send the answer of a checkpoint, which its combiners had not got then."""
        assert self._answer is not None, "the run has a quorum"
        self._owes, self._packed, training = False, None, self._training
        training.on(Trigger.SENDS_AGAIN)
        training.round, training.flags = self._answer.round, Flag.NONE
        for to, answer in self._answer.messages:
            yield from self._send_part(to, answer)
        yield from self._sender.end_when_sent()

    def _send_part(self, to: Peer, answer: Update | Absent) -> Iterator[Effect]:
        if isinstance(answer, Absent):
            yield Send(self._to(to), answer)
        else:
            yield from self._sender.put(to, answer)

    def _record_round(self) -> Iterator[Effect]:
        """Record what was trained and sent, unless that was before a checkpoint."""
        if self._packed is None:
            return
        yield Record("round", self._training.record_fields() | self._packed.fields())
        if self._commitments is not None and Flag.SUSPEND in self._training.flags:
            # It ends, and could not answer a request.
            yield Send(self._receivers[0], self._commitments.hand_over(self.round))
