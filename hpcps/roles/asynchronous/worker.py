"""The worker of the asynchronous protocol."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from hpcps.protocol.messages import Flag, ModelReply, NoUpdate, Peer, ServedBy, TakePart, UpdateRequest, WriteCheckpoint
from hpcps.protocol.received import Lost, Malformed, Received, Replaced
from hpcps.protocol.roster import EVALUATOR, SERVER_0, Roster
from hpcps.roles.adversary import AdversaryClient
from hpcps.roles.asynchronous.log import EntryKind, LogClient, LogEntry
from hpcps.roles.checks import unwanted
from hpcps.roles.events import Computed, Drain, Effect, Event, Idle, Record, Send
from hpcps.roles.resources import ALONE, Resources
from hpcps.roles.stages import ASYNC_WORKER, Stage, Trigger
from hpcps.roles.update.packer import Packed
from hpcps.roles.worker import Worker
from hpcps.spec.schema import Run
from hpcps.training.evaluation import Progress
from hpcps.training.schedule import learning_rate, schedule_of
from hpcps.training.trainer import Trainer


class AsyncWorker(Worker):
    """Trains on its shard, sends its update, and goes on as soon as it has the model after it, whatever others do.

    The residual is all that a checkpoint keeps of an update that is on its way.
    """

    stages = ASYNC_WORKER

    def __init__(self, peer: Peer, run: Run, trainer: Trainer, resources: Resources = ALONE) -> None:
        self._settings = run.asynchronous
        combiners = Roster.of(run).combiners_of(peer.index)
        self._validator = combiners[0] if run.topology.validators else None
        # The position of the entry of the log since which this validator serves the worker, and the last one recorded.
        self._since = 0
        self._recorded: int | None = 0
        super().__init__(peer, run, trainer, resources, combiners)
        self._log = LogClient(run, trainer.layout, self._training)
        self._adversary = AdversaryClient(peer, run, self._packer)
        self._schedule = schedule_of(run, peer.role, peer.index) if run.filter.compares_with else None
        self._rate = 0.0
        self._sent: UpdateRequest | NoUpdate | None = None

    def handle(self, event: Event) -> Iterator[Effect]:
        match event:
            case Received(source, ModelReply() as model) if source.role == "server":
                yield from self._log.receive_model(source, model)
            case Received(source, WriteCheckpoint() as due) if source == SERVER_0:
                yield from self._training.take_checkpoint(due)
            case Received(source, ServedBy() as served) if source == SERVER_0:
                yield from self._go_on_with(served)
            case Received() | Malformed() if self._adversary.answers(event):
                self._packed = self._adversary.take(event)
                yield from self._send_update()
            case Received() | Malformed() if not self._training.takes(event):
                yield from self.refuse(event.source, unwanted(event, str(self.peer)))
            case Computed("adopt") if self._training.over and Flag.LAST not in self._training.inbox.flags:
                # Its predecessor was lost, or the run stopped, before it could say so.
                yield from self._stop()
            case Lost() | Replaced() if event.peer == EVALUATOR:
                yield from self._training.note_evaluator(event)
            case Replaced():
                pass  # server 0 says from when on it serves
            case Idle():
                yield from self._training.begin_steps()
            case _:
                yield from self._go_on(event)

    def take_place(self, part: TakePart) -> None:
        """Begin in the place of a lost worker."""
        self._training.take_place(part.incarnation)
        if self._training.is_coordinator and not part.round:
            return  # the server has no model yet
        self.go_to(0, part.position, part.evaluated)
        self._log.go_on(part.round)
        if part.validator is not None:
            self._validator, self._since, self._recorded = Peer("validator", part.validator), part.since, None

    def take_steps(self, steps: int) -> Progress:
        training, settings = self._training, self._settings
        epoch = training.epochs_over if settings.epochs == "validator" and not training.is_coordinator else None
        if self._schedule is not None:
            # The run has one local step in a cycle, so this is the learning rate of the whole update.
            trainer = self._trainer
            self._rate = learning_rate(self._schedule, trainer.steps_done, trainer.steps_per_epoch, epoch)
        relabel = self._packer.attacker.relabel(self.round, training.epochs_over)
        pull = settings.proximal.worker
        return self._trainer.train(steps, anchor=training.base, pull=pull, epoch=epoch, relabel=relabel)

    def after_packing(self, packed: Packed) -> Iterator[Effect]:
        """Show the update to the adversary, if there is one and an update; else send it."""
        yield from self._adversary.show(packed, self.round, epoch=self._training.epochs_over)
        if not self._adversary.waiting:
            yield from self._send_update()

    def _send_update(self) -> Iterator[Effect]:
        """Send the update, or say that there is none; wait for the answer, if there will be one."""
        packed, training = self._packed, self._training
        assert packed is not None, "it has been packed"
        answered = bool(packed.parts) or self._settings.absent == "reset"
        send = self._send_to_validator if self._validator else self._send_to_servers
        yield from send(packed, self._log.request + answered)
        yield Record("round", {**training.record_fields(), **packed.fields(), "version": training.version})
        training.round += 1
        if training.over:
            yield from self._stop()
        elif answered:
            training.on(Trigger.UPDATE_SENT)
            yield from self._log.ask()
        else:
            training.on(Trigger.UPDATE_GROWS)
            # The worker handles messages between two cycles, so that it hears of the end of the run.
            yield Drain()

    def _stop(self) -> Iterator[Effect]:
        """End the run, as the coordinator, whose cycles are done; wait for the last model."""
        self._training.on(Trigger.ROUNDS_OVER)
        number = self._log.request = self._log.next_number()
        self._training.inbox.clear()
        # Its last cycles may have sent nothing, and its replacement evaluates after all of them.
        stop = LogEntry(EntryKind.STOP, self.peer, number, self.peer, number, position=self.position())
        yield from self._log.submit(stop)

    def _send_to_validator(self, packed: Packed, request: int) -> Iterator[Effect]:
        if not packed.parts:
            # What the worker has trained so far goes into its next update, unless it waits for a model.
            position = self.position() if self._settings.absent == "reset" else None
            yield from self._send(NoUpdate(request=request, position=position, since=self._since))
        for place in range(len(packed.parts)):
            part = yield from self.encoded(packed, place)
            update = UpdateRequest(
                request=request,
                base_version=self._training.version,
                mask=part.mask,
                rate=self._rate,
                position=self.position(),
                since=self._since,
                values=part.payload,
            )
            yield from self._send(update)

    def _send(self, message: UpdateRequest | NoUpdate) -> Iterator[Effect]:
        """Send a message to the validator; if that is another one than before, a record line before says which.

        So a replay knows whom a worker has served that was lost, too.
        """
        assert self._validator is not None, "the run has validators"
        self._sent = message
        if self._recorded != self._since:
            self._recorded = self._since
            fields = {"validator": self._validator.index, "since": self._since, "request": message.request}
            yield Record("served_by", fields)
        yield Send(self._validator, message)

    def _go_on_with(self, served: ServedBy) -> Iterator[Effect]:
        """Send what waits for an answer to the validator that serves from now on, which knows if it is answered."""
        self._validator, self._since = Peer("validator", served.validator), served.since
        waits = self._training.stage is Stage.WAITING_FOR_MODEL and not self._training.inbox.complete
        if self._sent is not None and waits and self._sent.request == self._log.request:
            yield from self._send(replace(self._sent, since=self._since))

    def _send_to_servers(self, packed: Packed, request: int) -> Iterator[Effect]:
        """Have the servers filter the update; a worker that sends nothing but wants the model reads it."""
        if request == self._log.request:
            return
        kind, training = EntryKind.UPDATE if packed.sent else EntryKind.READ, self._training
        number = self._log.next_number()
        entry = LogEntry(
            kind, self.peer, number, self.peer, request, training.version, self.epoch, rate=self._rate,
            position=self.position(),
        )  # fmt: skip
        parts = []
        for place in range(len(packed.parts)):
            part = yield from self.encoded(packed, place)
            parts.append((part.mask, part.payload))
        yield from self._log.submit(entry, parts if packed.sent else None)
