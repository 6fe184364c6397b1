"""The validator of the asynchronous protocol."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial

from hpcps.aggregation.encoding import UpdateDecoder
from hpcps.aggregation.outcomes import Acceptance, Tally
from hpcps.aggregation.rule_state import RuleState
from hpcps.numerics.layout import Mask, Vector
from hpcps.numerics.state import Kept, Position, State
from hpcps.protocol.messages import (
    ModelReply,
    NoUpdate,
    Peer,
    ServeWorkers,
    TakePart,
    UpdateRequest,
    WriteCheckpoint,
)
from hpcps.protocol.partitioning import Partition
from hpcps.protocol.received import Lost, Malformed, Received, Replaced
from hpcps.protocol.roster import EVALUATOR, SERVER_0, Roster
from hpcps.roles.asynchronous.filter import FilteredUpdate, UpdateFilter
from hpcps.roles.asynchronous.log import EntryKind, LogClient, LogEntry
from hpcps.roles.checks import not_finite, rejection, unwanted
from hpcps.roles.events import Compute, Computed, Drain, Effect, Event, Idle, Record, SetDeadline, Start
from hpcps.roles.losses import Positions, record_loss, record_replacement
from hpcps.roles.resources import ALONE, Resources
from hpcps.roles.stages import ASYNC_VALIDATOR, Stage, Trigger
from hpcps.roles.training_role import TrainingRole
from hpcps.roles.weights import ALIKE, UpdateWeights
from hpcps.spec.schema import Run
from hpcps.training.evaluation import Progress
from hpcps.training.trainer import Trainer


class AsyncValidator(TrainingRole):
    """Refreshes its model and its own update, filters some of its workers' updates by them, and refreshes again.

    It sends the accepted part of an update to the servers, which answer the worker. Under a rule that needs no
    reference it only runs its batches, which feeds its BatchNorm statistics and counts its epochs.

    With `survive.validators` it may serve the workers of lost validators, too; server 0 says which (`ServeWorkers`). It
    judges their updates like those of its own workers, by its own reference, data and rule state.
    """

    stages = ASYNC_VALIDATOR

    def __init__(
        self, peer: Peer, run: Run, trainer: Trainer, resources: Resources = ALONE, weights: UpdateWeights = ALIKE
    ) -> None:
        super().__init__(peer, run, trainer, resources)
        self._settings = run.asynchronous
        self._accumulates = run.asynchronous.absent == "accumulate"
        rule = self._rule = run.filter
        if run.buffered:  # the servers weigh and scale what is in their buffer
            weights = ALIKE
        self._filter = UpdateFilter(rule, trainer.layout, RuleState(rule, run.seed, peer), resources.local, weights)
        self._whole = Partition.of(trainer.layout, (0, trainer.layout.size))
        self._decoder = UpdateDecoder.of(run, trainer.layout)
        self._acceptance = Acceptance()
        self._log = LogClient(run, trainer.layout, self._training)
        # The workers that it serves, each with the position of the entry of the log since which it does so.
        self._serves = dict.fromkeys(Roster.of(run).share(peer), 0)
        self._reference: Vector | None = None
        if "reference" in rule.requires:
            self._reference = resources.local(trainer.layout.size)
        self._loss: Callable[[Vector], float] | None = None
        # Updates that wait here are lost with a checkpoint, as are those on their way.
        self._queue: deque[LogEntry] = deque()
        # Of each worker that it may serve, the last request.
        workers = Roster.of(run).all_workers() if run.survive.validators else tuple(self._serves)
        self._requests = dict.fromkeys(workers, 0)
        # Messages of workers that know already that it will serve them.
        self._held: dict[Peer, list[UpdateRequest | NoUpdate]] = {}
        self._lost: set[Peer] = set()
        self._incarnations: dict[Peer, int] = {}
        self._positions = Positions()
        # What became of workers before the first model: until then the servers take no entries.
        self._early: list[Lost | Replaced | ServeWorkers] | None = []
        # The numbers of the workers' replacements that have got a model.
        self._begun: dict[Peer, int] = {}
        self._presents = False
        self._left = 0
        self._participants: list[int] = []
        self._absent: list[int] = []
        self._malformed = 0
        self._tally = Tally()

    @property
    def kept(self) -> Mapping[str, Kept]:
        kept: dict[str, Kept] = {"acceptance": self._acceptance, "rule": self._filter.kept}
        return kept | ({"positions": self._positions} if self._run.survive.workers else {})

    def restore(self, state: State) -> None:
        if "lost" in state.facts:  # it has no part of the checkpoint
            self._go_to(state.facts["position"], state.facts["lost"])
            self._positions.learn(state.facts["positions"])
        else:
            super().restore(state)

    def take_place(self, part: TakePart) -> None:
        """Begin in the place of a lost validator: with its batches, and without the updates that it kept.

        Server 0 says next which workers it serves.
        """
        self._training.take_place(part.incarnation)
        if not part.round:
            return  # the servers have no model yet
        self._serves.clear()
        # Servers may lack the initial model: a coordinator that was lost has sent it to some only. All had it when an
        # entry of the coordinator's own was executed.
        self._presents = self._training.is_coordinator and part.position is None
        self._go_to(part.position, part.evaluated)
        self._log.request = part.round

    def _go_to(self, position: Position | None, evaluated: int) -> None:
        """Go on at the batches of a lost validator, after so many evaluated epochs."""
        if position is not None:
            self._trainer.go_to(position["data"])
        elif self._training.is_coordinator and self.steps_before_model:
            self._trainer.train(self.steps_before_model)
        self._training.resume(0, evaluated)

    def evaluation_fields(self) -> dict[str, object]:
        return self._acceptance.fields()

    def handle(self, event: Event) -> Iterator[Effect]:
        match event:
            case Received(source, ModelReply() as model) if source.role == "server":
                yield from self._log.receive_model(source, model)
            case Received(source, UpdateRequest() | NoUpdate() as message) if source in self._requests:
                yield from self._take_update(source, message)
            case Received(source, ServeWorkers() as change) if source == SERVER_0:
                yield from self._note(change)
            case Received(source, WriteCheckpoint() as due) if source == SERVER_0:
                yield from self._training.take_checkpoint(due)
            case Received() | Malformed() if not self._training.takes(event):
                yield from self._refuse(event.source, unwanted(event, str(self.peer)))
            case Start() if self._presents:
                yield from self.initial_messages(statistics=False)
                yield from self._training.handle(event)
            case Lost() | Replaced() if event.peer == EVALUATOR:
                yield from self._training.note_evaluator(event)
            case Lost() | Replaced() if event.peer in self._requests:
                yield from self._note(event)
            case Lost() | Replaced():
                pass  # server 0, or another validator, says what becomes of it
            case Computed("adopt") if self._early is not None:
                early, self._early = self._early, None
                for each in early:
                    yield from self._note(each)
                yield from self._training.handle(event)
            case Idle():
                yield from self._handle_updates(max(1, len(self._queue)))
            case Computed("combine", filtered):
                yield from self._send_filtered(filtered)
            case _:
                yield from self._training.handle(event)

    def take_steps(self, steps: int) -> Progress:
        """Train under a rule that needs a reference, and before the first model; else only run the batches."""
        training = self._training
        if self._reference is not None:
            return self._trainer.train(steps, anchor=training.base, pull=self._settings.proximal.validator)
        if self._trainer.steps_done < self.steps_before_model:
            return self._trainer.train(steps)
        return self._trainer.observe(steps)

    def after_steps(self) -> Iterator[Effect]:
        """Begin to handle the workers' messages: a share of them, or those that wait now, at least one."""
        if self._reference is not None:
            self._trainer.copy_to(self._reference)
            self._reference -= self._training.base
        if "loss" in self._rule.requires:
            self._loss = self.loss_of_round()
        if self._settings.updates_per_refresh == "share":
            yield from self._handle_updates(max(1, len(self._serves)))
        else:
            yield Drain()

    def _take_update(self, source: Peer, message: UpdateRequest | NoUpdate) -> Iterator[Effect]:
        """Take a worker's message; it is handled in its turn, or once this validator serves the worker."""
        expected, request = self._requests[source] + 1, message.request
        since = self._serves.get(source, -1)
        if self._run.survive.validators and message.since != since:
            if message.since > since:  # else another one has served it since then, and it sends again
                self._held.setdefault(source, []).append(message)
        elif isinstance(message, NoUpdate) and self._accumulates:
            self._queue.append(LogEntry(EntryKind.ABSENT, source, 0, source, request))
            yield from self._handle_next()
        elif request < expected and self._run.survive.validators:
            return  # it was sent again, and to the validator that served the worker before
        elif request < expected:
            yield rejection(source, f"a second or late message (of request {request})")
        elif request > expected:
            yield from self._refuse(source, f"it is of request {request}")
        else:
            try:
                # The worker does not change the payload before it is answered.
                entry = (
                    LogEntry(EntryKind.ABSENT, source, request, source, request, position=message.position, since=since)
                    if isinstance(message, NoUpdate)
                    else LogEntry.requested(source, message, self._decoder, self._whole)
                )
            except ValueError as error:
                yield from self._refuse(source, str(error))
                return
            self._requests[source] = expected
            self._queue.append(entry)
            yield from self._handle_next()

    def _note(self, event: Lost | Replaced | ServeWorkers) -> Iterator[Effect]:
        """Go on with other workers, without a lost one, or with its replacement, once there is a model."""
        if isinstance(event, Replaced) and event.incarnation > self._incarnations.get(event.peer, 0):
            self._held.pop(event.peer, None)  # those were its predecessor's
            self._incarnations[event.peer] = event.incarnation
        if self._early is not None:
            if isinstance(event, ServeWorkers):
                self._positions.learn(event.positions)  # a checkpoint may come before the model
            self._early.append(event)
        elif isinstance(event, ServeWorkers):
            yield from self._serve(event)
        else:
            yield from self._note_member(event)

    def _note_member(self, event: Lost | Replaced) -> Iterator[Effect]:
        """Wait for a lost worker no longer, or have the servers send its replacement a model.

        The updates of a lost worker that have come here enter the model.
        """
        peer = event.peer
        if isinstance(event, Lost):
            self._lost.add(peer)
            if peer in self._serves:
                if not self._run.survive.validators:  # otherwise server 0 records it: this process may be lost, too
                    yield record_loss(event)
                yield from self._handle_next()
            return
        self._lost.discard(peer)
        yield from self._admit(event)

    def _admit(self, replaced: Replaced) -> Iterator[Effect]:
        """Have the servers send the replacement of a worker a model, unless another validator has done so."""
        peer = replaced.peer
        if peer not in self._serves or replaced.incarnation <= self._begun.get(peer, 0):
            return
        self._begun[peer] = replaced.incarnation
        self._requests[peer] += 1
        for entry in self._queue:
            if entry.reader == peer:
                self._count(entry)
        yield record_replacement(replaced, self._requests[peer])
        entry = self._entry(EntryKind.READ, peer, self._requests[peer], self._serves[peer])
        at = self._positions.of(peer)
        yield from self._log.submit(replace(entry, incarnation=replaced.incarnation, position=at))

    def _serve(self, change: ServeWorkers) -> Iterator[Effect]:
        """Serve further workers from an entry of the log on, from where the servers have them; release others."""
        gained, released = [*map(Peer.parse, change.requests)], [Peer("worker", k) for k in change.released]
        for peer in (*gained, *released):
            self._serves.pop(peer, None)
            self._positions.forget(peer)
        self._queue = deque(entry for entry in self._queue if entry.reader in self._serves)
        self._serves |= dict.fromkeys(gained, change.since)
        for peer in gained:
            self._requests[peer], self._begun[peer] = change.requests[str(peer)], change.begun[str(peer)]
        self._positions.learn(change.positions)
        yield Record("serves", {"workers": sorted(peer.index for peer in self._serves)})
        for peer in gained:
            if peer in self._incarnations and peer not in self._lost:
                yield from self._admit(Replaced(peer, self._incarnations[peer]))
            for message in self._held.pop(peer, ()):
                yield from self._take_update(peer, message)
        yield from self._handle_next()

    def _count(self, entry: LogEntry) -> None:
        """Note that the message of a worker is handled."""
        self._positions.sent(entry.reader, entry.position)
        self._positions.count(entry.reader)

    def _refuse(self, source: Peer, reason: str) -> Iterator[Effect]:
        """Count a bad message as an empty update; the run cannot go on without a server's."""
        yield from self.refuse(source, reason)
        self._malformed += 1
        owes = source in self._serves and not any(e.reader == source and self._answers(e) for e in self._queue)
        if owes:
            self._requests[source] += 1
            number = self._requests[source]
            since = self._serves[source]
            self._queue.append(LogEntry(EntryKind.UPDATE, source, number, source, number, since=since))
            yield from self._handle_next()

    def _answers(self, entry: LogEntry) -> bool:
        """Return whether the worker of an entry waits for the model."""
        return entry.kind is not EntryKind.ABSENT or not self._accumulates

    def _handle_updates(self, count: int) -> Iterator[Effect]:
        """Handle so many of the workers' messages before the next refresh."""
        self._left = count
        self._training.on(Trigger.STEPS_DONE)
        yield from self._handle_next()

    def _handle_next(self) -> Iterator[Effect]:
        if self._training.stage is not Stage.GATHERING:
            return
        if not self._queue:
            yield SetDeadline(tuple(peer for peer in self._serves if peer not in self._lost))
            return
        entry = self._queue.popleft()
        if entry.position is not None:
            self._count(entry)
        if entry.kind is EntryKind.ABSENT:
            self._absent.append(entry.reader.index)
            if self._answers(entry):
                yield from self._submit(
                    self._entry(EntryKind.READ, entry.reader, entry.request, entry.since), entry.position
                )
            yield from self._handled()
        else:
            self._training.on(Trigger.UPDATES_COMPLETE)
            alpha = 1.0 if self._run.buffered else self._settings.alpha_in(self._decay_epoch)
            work = partial(self._filter, entry, alpha, self._reference, self._loss)
            yield Compute("combine", work, elements=self._trainer.layout.size)

    def _send_filtered(self, filtered: FilteredUpdate) -> Iterator[Effect]:
        """Send the accepted part of an update to the servers; if it is empty, its worker just gets the model."""
        update = filtered.entry
        kind = EntryKind.APPLY if filtered.applied.any() else EntryKind.READ
        parts = self._log.cut(self._filter.update, filtered.applied) if kind is EntryKind.APPLY else None
        entry = self._entry(kind, update.reader, update.request, update.since)
        entry = replace(entry, rate=filtered.rate, base_version=update.base_version)
        yield from self._submit(entry, update.position, parts)
        if filtered.rejected.any():
            yield not_finite(update.reader, filtered.rejected)
        self._participants.append(update.reader.index)
        self._tally.add(filtered.tally)
        self._training.on(Trigger.COMBINED)
        yield from self._handled()

    def _submit(
        self, entry: LogEntry, position: Position | None, parts: list[tuple[Mask, Vector]] | None = None
    ) -> Iterator[Effect]:
        """Submit an entry; a record line before says what had come until then, if this process may be lost.

        The line `round` does so for the entry of a refresh.
        """
        if self._run.survive.validators:
            entry = replace(entry, position=position)
            yield Record("submitted", entry.fields())
        yield from self._log.submit(entry, parts)

    def _handled(self) -> Iterator[Effect]:
        self._left -= 1
        yield from self._handle_next() if self._left else self._refresh()

    def _refresh(self) -> Iterator[Effect]:
        """Record what was handled, and ask for the model; the coordinator's last request ends the run."""
        training = self._training
        self._acceptance.add(self._tally)
        yield Record("round", training.record_fields() | self._handled_fields())
        self._participants, self._absent, self._malformed, self._tally = [], [], 0, Tally()
        training.round += 1
        kind = EntryKind.STOP if training.over else EntryKind.READ
        training.on(Trigger.ROUNDS_OVER if training.over else Trigger.ALL_HANDLED)
        entry = self._entry(kind, self.peer, self._log.request + 1)
        if self._run.survive.validators:
            entry = replace(entry, position={"data": list(self._trainer.position())})
        yield from self._log.submit(entry)
        yield from self._log.ask()

    @property
    def _decay_epoch(self) -> int:
        """The epoch that alpha follows."""
        training = self._training
        own = training.is_coordinator or self._settings.epochs == "own"
        return self.epoch if own else training.epochs_over

    def _entry(self, kind: EntryKind, reader: Peer, request: int, since: int = 0) -> LogEntry:
        return LogEntry(kind, self.peer, self._log.next_number(), reader, request, epoch=self.epoch, since=since)

    def _handled_fields(self) -> dict[str, object]:
        return {
            "participants": self._participants,
            "absent": self._absent,
            "version": self._training.version,
            "queued": len(self._queue),
            **self._tally.fields(),
            "turned_pairs": self._tally.negated,
            "malformed": self._malformed,
        }
