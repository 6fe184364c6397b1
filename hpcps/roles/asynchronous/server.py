"""The server of the asynchronous protocol."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hpcps.aggregation.encoding import wrong_blocks
from hpcps.errors import RunError
from hpcps.numerics.layout import Vector
from hpcps.numerics.state import State
from hpcps.numerics.vectors import on_host
from hpcps.protocol.messages import (
    Admitted,
    ApplyUpdate,
    EntryArrived,
    EvaluationRecorded,
    Flag,
    InitialModel,
    Message,
    Ordered,
    PartWritten,
    Peer,
    Read,
    RunEnds,
    Stop,
    SubmittedEntry,
    UpdateEntry,
    WriteCheckpoint,
)
from hpcps.protocol.received import Lost, Malformed, Received, Replaced
from hpcps.protocol.roster import SERVER_0, Roster
from hpcps.roles.asynchronous.log import OWN, UPDATES, EntryKind, Log, LogEntry, LogPosition
from hpcps.roles.asynchronous.membership import AsyncMembership
from hpcps.roles.asynchronous.shard import Applied, AsyncShard
from hpcps.roles.checkpointing import CheckpointParts, dismissal, report
from hpcps.roles.checks import rejection, wrong_size
from hpcps.roles.events import (
    Effect,
    Event,
    Finish,
    Now,
    Record,
    Save,
    Send,
    SetDeadline,
    Snapped,
    Snapshot,
    Start,
    StopRequested,
)
from hpcps.roles.losses import admit, record_loss, record_replacement
from hpcps.roles.messaging_role import MessagingRole
from hpcps.roles.resources import ALONE, Resources
from hpcps.roles.stages import ASYNC_SERVER, Stage, StageMachine, Trigger
from hpcps.roles.weights import ALIKE, UpdateWeights
from hpcps.spec.schema import Run


class AsyncServer(MessagingRole):
    """Keeps a shard of the global model, applies every update as it comes, and answers with the model right after it.

    All servers execute the same entries in the same order, which server 0 decides: so their answers to one request have
    one version. Without validators each server filters its shard of the workers' updates itself.
    """

    def __init__(self, peer: Peer, run: Run, resources: Resources = ALONE, weights: UpdateWeights = ALIKE) -> None:
        super().__init__(peer, run)
        self.round = 0
        self._weights = weights
        self._resources = resources
        self._roster = Roster.of(run)
        # Validators submit entries, or workers if there are no validators.
        self._log = Log(tuple(p for p in self._roster.readers() if p.role == self._roster.coordinator.role))
        self._shard: AsyncShard | None = None
        self._diverged = False
        self._checkpoint = CheckpointParts(self._roster, dismissal(run, Flag.SUSPEND))
        self._members = AsyncMembership(run)
        self._evaluated = 0  # the epochs whose evaluations are recorded
        self._last: LogPosition | None = None  # the place of the `Stop`
        self._early: list[Event] = []  # before the initial model
        self._stages = StageMachine(ASYNC_SERVER)

    def handle(self, event: Event) -> Iterator[Effect]:
        match event:
            case Start() if self._shard is not None:
                yield from self._present(self._shard)
            case Start():
                yield SetDeadline((self._roster.coordinator,))
            case Received(source, message):
                yield from self._receive(source, message)
            case Malformed(source, reason):
                yield from self._refuse(source, reason)
            case StopRequested():
                self._checkpoint.stop(event)
                yield from self._checkpoint_when_due(due=self._checkpoint.wanted)
            case Snapped():
                yield from self._snapped(event)
            case Lost() | Replaced() if self._shard is not None:
                yield from self._note_member(event, self._shard)
            case Replaced(peer) if peer == self._roster.coordinator:
                # It gives the initial model, and begins like its predecessor.
                self._early = [each for each in self._early if not isinstance(each, Lost) or each.peer != peer]
                self._members.replace(event)
                yield from admit(event, 0, None) if self.peer == SERVER_0 else ()
            case Lost() | Replaced():
                self._early.append(event)

    def _note_member(self, event: Lost | Replaced, shard: AsyncShard) -> Iterator[Effect]:
        """Go on without a lost process; admit its replacement, unless its validator does so."""
        peer, decides = event.peer, not self._roster.validators or event.peer.role == "validator"
        if isinstance(event, Lost):
            self._members.lose(peer)
            if peer in self._log.submitters and self._roster.validators:
                self._log.drop(peer)
            # If a validator may be lost, it may be lost before it has recorded the loss of a worker.
            yield from (record_loss(event),) if decides or self._run.survive.validators else ()
            if self.peer == SERVER_0 and self._stages.stage is Stage.SERVING and peer.role == "validator":
                yield from self._serve_without(peer, shard)
            if self._stages.stage is Stage.SERVING:
                yield SetDeadline(self._waiting_for)
            yield from self._checkpoint.lose(peer)
            return
        self._members.replace(event)
        if self.peer != SERVER_0:
            # They learn from server 0 when it gets its first model, unless there is no entry yet.
            if peer == self._roster.coordinator and not self._log.index:
                yield Send(peer, shard.reply(peer, 0, self._log.here, whole=True))
            return
        if not decides:
            return
        if peer.role == "validator":
            yield from self._admit_validator(event, shard)
        elif self._stages.stage is Stage.SERVING:
            number = self._log.next_number(peer)
            yield record_replacement(event, number)
            entry = LogEntry(EntryKind.READ, peer, number, peer, number, incarnation=event.incarnation)
            yield from self._log_entry(replace(entry, position=self._members.positions.of(peer)), shard)
        elif self._last is not None and peer == self._roster.coordinator:  # it evaluates the last model
            number = self._log.next_number(peer)
            yield from admit(event, number, self._members.positions.of(peer), self._evaluated)
            yield self._last_model(peer, number, self._last, shard)

    def _serve_without(self, lost: Peer, shard: AsyncShard) -> Iterator[Effect]:
        """Have other validators serve the workers of a lost one; if there are none, the workers wait."""
        there = tuple(index for index in self._members.validators if index != lost.index)
        if there == self._members.validators:
            return
        entry = LogEntry.serve(there)
        place = self._log.place(entry, self._roster.coordinator)
        for server in self._roster.all_servers()[1:]:
            yield Send(server, place.message(entry))
        yield from self._members.serve(there, place.index)
        yield from self._execute(entry, place, shard)
        yield from self._checkpoint_after(place, place.epoch)

    def _admit_validator(self, event: Replaced, shard: AsyncShard) -> Iterator[Effect]:
        """Have the replacement of a validator take part; after the run only that of the coordinator, to evaluate."""
        peer, stage = event.peer, self._stages.stage
        if stage is not Stage.SERVING and (self._last is None or peer != self._roster.coordinator):
            return
        members = self._members
        members.begin(peer)
        request, serving = members.answered.get(peer, 0) + 1, stage is Stage.SERVING
        evaluated = self._evaluated if peer == self._roster.coordinator else 0
        there = tuple(sorted({*members.validators, peer.index}))
        yield from admit(event, request, members.positions.of(peer), evaluated)
        entry = LogEntry(EntryKind.READ, peer, 0, peer, request, incarnation=event.incarnation, validators=there)
        place = self._last or self._log.place(entry, self._roster.coordinator)
        if serving:
            yield from members.serve(there, place.index)
        admitted = Admitted(
            validator=peer.index, incarnation=event.incarnation, request=request, position=place.index,
            version=place.version, epoch=place.epoch, validators=there,
        )  # fmt: skip
        for server in self._roster.all_servers()[1:]:
            yield Send(server, admitted)
        if serving:
            yield from self._execute(entry, place, shard)
            yield from self._checkpoint_after(place, place.epoch)
        else:
            members.answered[peer] = request
            yield self._last_model(peer, request, place, shard)

    def _take_admitted(self, admitted: Admitted, shard: AsyncShard) -> Iterator[Effect]:
        """Execute the entry at which the replacement of a validator begins, in its turn."""
        peer = Peer("validator", admitted.validator)
        if self._last is not None:
            yield self._last_model(peer, admitted.request, self._last, shard)
            return
        self._log.drop(peer)
        entry = LogEntry(EntryKind.READ, peer, 0, peer, admitted.request, incarnation=admitted.incarnation)
        self._log.put(replace(entry, validators=admitted.validators))
        self._log.order(LogPosition(admitted.position, admitted.version, admitted.epoch, peer))
        yield from self._execute_ordered(shard)

    def _receive(self, source: Peer, message: Message) -> Iterator[Effect]:
        if source in self._members.lost and source.role == "validator":
            return  # what others have had of it before they knew decides
        if self._shard is None and self._run.survives_coordinator and not isinstance(message, InitialModel):
            self._early.append(Received(source, message))  # server 0 may be ahead
        elif self._shard is None:
            yield from self._initialise(source, message)
        elif isinstance(message, InitialModel) and self._run.survives_coordinator:
            return  # the replacement of the coordinator does not know who has it
        elif isinstance(message, EvaluationRecorded) and source in (self._roster.coordinator, SERVER_0):
            self._evaluated = max(self._evaluated, message.epoch)
            for server in self._roster.all_servers()[1:] if self.peer == SERVER_0 else ():
                yield Send(server, message)
            yield from self._end_when_evaluated(self._shard)
        elif self._stages.stage is Stage.STOPPING and not isinstance(message, Admitted):
            return
        elif isinstance(message, Admitted) and source == SERVER_0:
            yield from self._take_admitted(message, self._shard)
        elif isinstance(message, EntryArrived) and self.peer == SERVER_0:
            self._members.arrive(source, message)
            yield from self._place_arrived(self._shard)
        elif isinstance(message, Ordered) and source == SERVER_0:
            own = LogEntry.own(message) if message.submitter == SERVER_0 else None
            self._log.order(LogPosition.of(message), own)
            yield from self._execute_ordered(self._shard)
        elif isinstance(message, PartWritten) and self.keeps_checkpoints:
            yield from self._checkpoint.take(source, message)
            yield from self._checkpoint_when_due(due=self._checkpoint.wanted and not self._checkpoint.suspending)
        elif self._stages.stage is Stage.SUSPENDING:
            # It comes after the checkpoint at which the run is suspended; a resumed run sends it again.
            return
        elif source in self._log.submitters:
            yield from self._take_entry(source, message, self._shard)
        else:
            yield from self._refuse(source, f"a server gets no {message.kind} from {source}")

    def _initialise(self, source: Peer, message: Message) -> Iterator[Effect]:
        """Take the initial weights from the coordinator, and send everyone the model."""
        if source != self._roster.coordinator or not isinstance(message, InitialModel):
            expected = f"waits for the initial model from {self._roster.coordinator}"
            raise RunError(f"{self.peer} {expected}; {source} sent {message.kind}")
        if reason := wrong_size(message.values, AsyncShard.size(self.peer, self._run, message.layout)):
            raise RunError(f"{self.peer} cannot use the initial model that {source} sent: {reason}")
        self._shard = self._hold(message.layout, message.values)
        yield from self._present(self._shard)

    def _hold(self, table: list[list[Any]], model: Vector) -> AsyncShard:
        return AsyncShard(self.peer, self._run, table, model, self._resources, self._weights)

    def _present(self, shard: AsyncShard) -> Iterator[Effect]:
        """Send everyone the model that they begin with."""
        self._stages.on(Trigger.INITIAL_MODEL)
        for reader in self._roster.readers():
            yield Send(reader, shard.reply(reader, 0, self._log.here))
        yield SetDeadline(self._waiting_for)
        yield from self._checkpoint_when_due(due=self._checkpoint.wanted)
        early, self._early = self._early, []
        for event in early:
            yield from self.handle(event)

    @property
    def keeps_checkpoints(self) -> bool:
        """Server 0 does."""
        return self.peer == SERVER_0

    def state(self) -> State:
        """Return the model at this place of the log."""
        assert self._shard is not None, "there is no checkpoint before the first model"
        facts = {"layout": self._shard.table, "diverged": self._diverged}
        if self._run.survives_coordinator:
            facts["evaluated"] = self._evaluated
        if self._checkpoint.at_epoch:
            facts["epoch_ends"] = True
        parts = {} if self._shard.backups is None else {"backups": self._shard.backups.state()}
        if self._shard.stepper is not None:
            parts["optimizer"] = self._shard.stepper.state()
        if self._run.survive.workers:
            parts["positions"] = self._members.state()
        kept = self._shard.filter.kept
        if self._shard.buffer is not None:
            parts["buffer"], kept = self._shard.buffer.state(), self._shard.buffer.kept
        return State({"model": on_host(self._shard.model)}, facts).having(
            log=self._log.state(), rule=kept.state(), sent=self._shard.sent.state(), **parts
        )

    def restore(self, state: State) -> None:
        """Restore the model; everyone gets it, and numbers entries and requests from the start."""
        self._shard = self._hold(state.facts["layout"], state.arrays["model"])
        if self._shard.buffer is None:
            self._shard.filter.kept.restore(state.part("rule"))
        else:
            self._shard.buffer.kept.restore(state.part("rule"))
            self._shard.buffer.restore(state.part("buffer"))
        if self._shard.backups is not None:
            self._shard.backups.restore(state.part("backups"))
        if self._shard.stepper is not None:
            self._shard.stepper.restore(state.part("optimizer"))
        if "sent" in state.facts:  # a checkpoint of an earlier version does not have it
            self._shard.sent.restore(state.part("sent"), self._roster.readers())
        if self._run.survive.workers:
            self._members.restore(state.part("positions"))
        self._diverged = state.facts["diverged"]
        self._evaluated = state.facts.get("evaluated", 0)
        self._log.restore(state.part("log"))
        self.round = self._log.index

    def _checkpoint_when_due(self, *, due: bool) -> Iterator[Effect]:
        """Put a checkpoint into the log if one is due, there is a model, and no checkpoint is under way."""
        if not due or self._shard is None or self._checkpoint.open is not None or self._last is not None:
            return
        coordinator = self._roster.coordinator
        if coordinator in self._members.lost and self._members.positions.of(coordinator) is None:
            return  # other servers may lack the initial model, which its replacement gives them
        place = self._log.place(LogEntry.checkpoint(Flag.NONE), self._roster.coordinator)
        entry = LogEntry.checkpoint(self._checkpoint.begin(place.index, self._members.lost))
        for server in self._roster.all_servers()[1:]:
            yield Send(server, place.message(entry))
        for peer in (*self._roster.readers(), *self._roster.adversaries()):
            yield Send(peer, WriteCheckpoint(position=place.index, flags=entry.flags))
        yield from self._execute(entry, place, self._shard)

    def _checkpoint_after(self, place: LogPosition, epoch: int) -> Iterator[Effect]:
        """Put a checkpoint into the log if one is due after an entry; `epoch` is the epoch before the entry."""
        if self._stages.stage is not Stage.SERVING:
            return
        entries, epochs = (place.index - 1, place.index), (epoch, place.epoch)
        due = self._checkpoint.is_due(self._run.checkpoint, entries, epochs)
        due |= epoch < place.epoch and self._checkpoint.end_epoch()
        due |= self._checkpoint.wanted and not self._checkpoint.suspending
        yield from self._checkpoint_when_due(due=due)

    def _snapped(self, event: Snapped) -> Iterator[Effect]:
        """Report that this server's part is written."""
        if self.keeps_checkpoints:
            yield from self._checkpoint.enter(self.peer, event.position, event.checksum)
        else:
            yield report(event)
            if self._stages.stage is Stage.SUSPENDING:
                yield Finish(suspended=True)

    @property
    def _waiting_for(self) -> tuple[Peer, ...]:
        """The roles whose messages this server waits for."""
        submitters = tuple(peer for peer in self._log.submitters if peer not in self._members.lost)
        return self._log.waiting_for or submitters

    def _take_entry(self, source: Peer, message: Message, shard: AsyncShard) -> Iterator[Effect]:
        """Take the next entry of a submitter: server 0 executes it at once, the others where server 0 puts it."""
        if not isinstance(message, SubmittedEntry):
            yield from self._refuse(source, f"a server gets no {message.kind} from {source}")
            return
        expected, number = self._log.next_number(source), message.number
        if number < expected:
            yield rejection(source, f"a second or late message (of request {number})")
            return
        reason = f"it is of request {number}" if number > expected else self._wrong(source, message, shard)
        if reason is None:
            try:
                entry = LogEntry.of(source, message, shard.decoder, shard.whole)
            except ValueError as error:
                reason = str(error)
            else:
                yield from self._log_entry(entry, shard)
                return
        yield from self._refuse(source, reason)

    def _wrong(self, source: Peer, message: SubmittedEntry, shard: AsyncShard) -> str | None:
        """Return what is wrong with the kind or the blocks of a submitter's message; None if nothing is."""
        if isinstance(message, ApplyUpdate) and self._roster.validators:
            return wrong_blocks(message.mask, message.values, shard.layout)
        if isinstance(message, UpdateEntry) and not self._roster.validators:
            return None
        if isinstance(message, Read) or (isinstance(message, Stop) and source == self._roster.coordinator):
            return None
        return f"a server gets no {message.kind} from {source}"

    def _refuse(self, source: Peer, reason: str) -> Iterator[Effect]:
        """Count a worker's bad message as a READ; the run cannot go on without a validator's or server's message."""
        if source.role != "worker":
            raise RunError(f"{self.peer} cannot use what {source} sent: {reason}")
        yield rejection(source, reason)
        if self._shard is not None and source in self._log.submitters:
            number = self._log.next_number(source)
            yield from self._log_entry(LogEntry(EntryKind.READ, source, number, source, number), self._shard)

    def _log_entry(self, entry: LogEntry, shard: AsyncShard) -> Iterator[Effect]:
        may_not_count = self._run.survive.validators
        if self.peer != SERVER_0:
            self._log.put(entry.kept())
            if may_not_count:
                submitter, incarnation = entry.submitter.index, self._members.incarnation(entry.submitter)
                yield Send(SERVER_0, EntryArrived(number=entry.number, validator=submitter, incarnation=incarnation))
            yield from self._execute_ordered(shard)
        elif may_not_count:
            self._log.put(entry.kept())
            yield from self._place_arrived(shard)
        else:
            self._log.count(entry)
            yield from self._place(entry, shard)

    def _place_arrived(self, shard: AsyncShard) -> Iterator[Effect]:
        """Give their places, on server 0, to the entries that all servers have.

        One of a validator that no longer serves the reader gets none: the worker sends its update to the one that does.
        """
        others = self._roster.all_servers()[1:]
        for submitter in self._log.submitters:
            while (entry := self._log.first(submitter)) is not None and self._stages.stage is Stage.SERVING:
                if not self._members.serves(entry):
                    self._log.remove_first(submitter)
                    yield Record("not_served", entry.fields())
                    continue
                if not self._members.is_everywhere(entry, others):
                    break
                self._log.remove_first(submitter)
                yield from self._place(entry, shard)
        if self._stages.stage is Stage.SERVING:
            yield SetDeadline(self._waiting_for)

    def _place(self, entry: LogEntry, shard: AsyncShard) -> Iterator[Effect]:
        """Give an entry its place, on server 0, and execute it."""
        before = self._log.here.epoch
        if entry.kind in UPDATES and entry.base_version > self._log.version:
            yield rejection(
                entry.reader, f"made from version {entry.base_version}, and the model is {self._log.version}"
            )
            entry = entry.refused()
        place = self._log.place(entry, self._roster.coordinator)
        for server in self._roster.all_servers()[1:]:
            yield Send(server, place.message(entry))
        yield from self._execute(entry, place, shard)
        yield from self._checkpoint_after(place, before)

    def _execute_ordered(self, shard: AsyncShard) -> Iterator[Effect]:
        """Execute the entries that have come and have their place."""
        while (ready := self._log.take()) is not None:
            yield from self._execute(*ready, shard)
            if self._stages.stage is not Stage.SERVING:
                return
        yield SetDeadline(self._waiting_for)

    def _execute(self, entry: LogEntry, place: LogPosition, shard: AsyncShard) -> Iterator[Effect]:
        """Execute an entry, and send its reader the model."""
        self.round = place.index
        if entry.kind not in OWN:
            self._members.note(entry)
        staleness = self._staleness(entry, place)
        fields: dict[str, object] = {}
        if entry.incarnation and self._run.survive.validators:
            fields = {"incarnation": entry.incarnation}
        if entry.validators is not None:
            fields["validators"] = list(entry.validators)
        applied = None
        if entry.kind in UPDATES:
            settings = self._run.asynchronous
            alpha = settings.alpha_in(place.epoch if settings.epochs == "validator" else entry.epoch)
            updates: list[Applied] = []
            size = 0 if entry.payload is None else entry.payload.size
            yield Now("apply", lambda: updates.append(shard.take(entry, staleness, alpha)), elements=size)
            (update,) = updates
            yield from update.rejections
            applied = update.mask
            blocks = 0 if applied is None else int(applied.sum())
            fields = {"staleness": staleness, "weight": update.weight, "blocks": blocks, **update.fields}
        yield Record("applied", {"entry": place.index, "version": place.version, **entry.fields(), **fields})
        if not self._diverged and not shard.finite:
            self._diverged = True
            yield Record("diverged", {"what": "the model is not finite"})
        if entry.kind is EntryKind.STOP:
            yield from self._finish(entry, place, shard)
        elif entry.kind is EntryKind.CHECKPOINT:
            if entry.flags & Flag.SUSPEND:
                self._stages.on(Trigger.SUSPENSION_DUE)
            yield Snapshot(place.index, self.state())
        elif entry.kind is not EntryKind.SERVE:
            if self.peer == SERVER_0 and entry.incarnation and entry.reader.role == "worker":
                evaluated = self._evaluated if entry.reader == self._roster.coordinator else 0
                yield self._members.take_part(entry, evaluated)
            if self._members.answers(entry):
                whole = entry.incarnation > 0
                yield Send(entry.reader, shard.reply(entry.reader, entry.request, place, applied, whole=whole))

    def _staleness(self, entry: LogEntry, place: LogPosition) -> int:
        """Return how often the model has changed since the version from which an update was made.

        The update itself does not count: an update made from the current model is not stale. With a buffer of n
        updates, every n-th version changes the model.
        """
        size = self._run.asynchronous.buffer or 1
        return max(0, (place.version - 1) // size - entry.base_version // size)

    def _finish(self, entry: LogEntry, place: LogPosition, shard: AsyncShard) -> Iterator[Effect]:
        """Tell everyone that the run is over; only the coordinator, which evaluates the model, needs it."""
        last = shard.reply(entry.reader, entry.request, place, last=True)
        for reader in self._roster.readers():
            yield Send(reader, last if reader == self._roster.coordinator else replace(last, values=last.values[:0]))
        if self.keeps_checkpoints:
            for adversary in self._roster.adversaries():
                yield Send(adversary, RunEnds(round=place.index))
        self._last = place
        if self._run.survives_coordinator:
            self._stages.on(Trigger.EVALUATION_DUE)
            yield SetDeadline((self._roster.coordinator,))
        yield from self._end_when_evaluated(shard)

    def _last_model(self, reader: Peer, request: int, place: LogPosition, shard: AsyncShard) -> Send:
        """Return the last model for the replacement of the coordinator."""
        return Send(reader, shard.reply(reader, request, place, last=True))

    def _end_when_evaluated(self, shard: AsyncShard) -> Iterator[Effect]:
        """End after the `Stop`, if the last evaluation is recorded: until then a replacement may need the model."""
        survives = self._run.survives_coordinator
        if self._last is not None and (not survives or self._evaluated >= self._run.train.epochs):
            self._stages.on(Trigger.ROUNDS_OVER)
            yield Save(f"final/{self.peer}", on_host(shard.model))
            if self.keeps_checkpoints:
                yield from dismissal(self._run, Flag.NONE)
            yield Finish()
