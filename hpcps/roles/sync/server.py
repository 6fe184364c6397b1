"""The server of the synchronous protocol."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from hpcps.errors import RunError
from hpcps.layout import Layout, Vector
from hpcps.messages import Flag, Kind, Malformed, Message, Peer, Received
from hpcps.roles.cast import Cast
from hpcps.roles.checkpointing import ECHOED, KEEPER, Ledger, periodic, report
from hpcps.roles.checks import not_finite, rejection, wrong_envelope, wrong_size
from hpcps.roles.course import Course
from hpcps.roles.events import (
    Compute,
    Computed,
    Effect,
    Event,
    Finish,
    Record,
    Save,
    Send,
    SetDeadline,
    Snapped,
    Snapshot,
    Start,
    StopRequested,
)
from hpcps.roles.sync.collector import Collector
from hpcps.rules import Average, Combined, Rule, screen
from hpcps.spec.schema import Run
from hpcps.state import State
from hpcps.updates import Updates


class Server:
    """Keeps a shard of the global model: adds the mean of the validators' combined updates, round by round.

    Without validators it combines its shard of the workers' updates itself.
    """

    def __init__(self, peer: Peer, run: Run, run_id: str) -> None:
        self.peer = peer
        self.round = 0
        self._run = run
        self._run_id = run_id
        self._cast = Cast(run.topology.servers, run.topology.validators, run.topology.workers)
        self._validators = tuple(Peer("validator", v) for v in range(run.topology.validators))
        self._model: Vector = np.zeros(0, np.float32)
        # The next model is made beside this one: a round that is found out to be spoilt is begun anew from this one.
        self._next: Vector = self._model
        self._layout = Layout(())
        self._course: Course | None = None
        self._statistics = False
        self._combined: dict[Peer, Updates] = {}
        self._collector: Collector | None = None
        self._diverged = False
        self._applying = False
        self._table: list[list[Any]] = []
        self._ledger = Ledger(self._cast)
        self._flags = Flag.NONE

    @property
    def device(self) -> str:
        """A server adds up on the CPU."""
        return "cpu"

    def handle(self, event: Event) -> Iterator[Effect]:
        """React to an event."""
        match event:
            case Start() if self._course is not None:
                yield from self._publish(self._course)
            case Start():
                yield SetDeadline((self._cast.chief,))
            case Received(source, message):
                yield from self._receive(source, message)
            case Malformed(source, reason):
                yield from self._refuse(source, reason)
            case Computed(_, result):
                yield from self._applied(result)
            case StopRequested():
                self._ledger.wanted = True
            case Snapped():
                yield from self._snapped(event)

    def _receive(self, source: Peer, message: Message) -> Iterator[Effect]:
        reason = wrong_envelope(message, source, self._run_id)
        if reason:
            yield from self._refuse(source, reason)
        elif self._course is None:
            yield from self._initialise(source, message)
        elif message.kind is Kind.PART and self.keeps_checkpoints:
            yield from self._ledger.enter(source, message.round, str(message.note.get("checksum")))
        elif message.kind is Kind.COMBINED and source in self._validators:
            yield from self._take_combined(source, message)
        elif self._collector is not None and message.kind in (Kind.UPDATE, Kind.ABSENT) and source.role == "worker":
            yield from self._collector.put(source, message, self.round)
            if message.round == self.round:
                self._flags |= message.flags & ECHOED
            yield from self._apply_when_ready()
        else:
            yield from self._refuse(source, f"a server gets no {message.kind.name} from {source}")

    def _initialise(self, source: Peer, message: Message) -> Iterator[Effect]:
        """Take the initial weights from the chief and begin."""
        if source != self._cast.chief or message.kind is not Kind.INIT:
            expected = f"waits for the initial model from {self._cast.chief}"
            raise RunError(f"{self.peer} {expected}; {source} sent {message.kind.name}")
        course, size = self._plan(message.note["layout"], message.note["steps_per_epoch"], message.note["statistics"])
        reason = wrong_size(message, size)
        if reason:
            raise RunError(f"{self.peer} cannot use the initial model that {source} sent: {reason}")
        self._model = message.values.copy()
        self._next = np.empty_like(self._model)
        yield from self._publish(course)

    def _plan(self, table: list[list[Any]], steps_per_epoch: int, statistics: bool) -> tuple[Course, int]:
        """Get to know the model's layout and the course of the run; return the course, and the size of the shard."""
        whole = Layout.from_json(table)
        start, stop = whole.bounds(self._cast.servers)[self.peer.index]
        self._table, self._layout, self._statistics = table, whole.restrict(start, stop), statistics
        self._course = Course(
            self._run.train.epochs,
            steps_per_epoch,
            self._run.train.local_steps,
            inside_rounds=self._run.validation.evaluate == "validator_model",
        )
        if not self._validators:
            self._collector = Collector(self._cast.share(self.peer), self._layout)
        return self._course, stop - start

    @property
    def keeps_checkpoints(self) -> bool:
        """Server 0 does."""
        return self.peer == KEEPER

    def state(self) -> State:
        """Return the model of the round that begins, and what the chief said of the run."""
        assert self._course is not None, "there is no checkpoint before the first round"
        facts = {
            "round": self.round,
            "layout": self._table,
            "steps_per_epoch": self._course.steps_per_epoch,
            "statistics": self._statistics,
            "diverged": self._diverged,
        }
        return State({"model": self._model}, facts)

    def restore(self, state: State) -> None:
        """Go on with the round that began at the checkpoint."""
        facts = state.facts
        self._plan(facts["layout"], facts["steps_per_epoch"], facts["statistics"])
        self._model = state.arrays["model"]
        self._next = np.empty_like(self._model)
        self.round, self._diverged = facts["round"], facts["diverged"]

    def _checkpoint_flags(self, course: Course) -> Flag:
        """Decide whether everyone writes a checkpoint after this round; only the keeper does."""
        if not self.keeps_checkpoints or self._ledger.open is not None or self.round + 1 >= course.rounds:
            return Flag.NONE
        due = periodic(self._run.checkpoint.every, course.ended(self.round), course.ended(self.round + 1))
        return self._ledger.begin(self.round + 1) if due or self._ledger.wanted else Flag.NONE

    def _snapped(self, event: Snapped) -> Iterator[Effect]:
        """Tell that this server's part is written; go on, or end."""
        assert self._course is not None, "it was running"
        suspended = bool(self._flags & Flag.SUSPEND)
        if self.keeps_checkpoints:
            yield SetDeadline(tuple(peer for peer in self._ledger.missing() if peer != self.peer))
            yield from self._ledger.enter(self.peer, event.moment, event.checksum)
        else:
            yield report(self.peer, self._run_id, event)
            if suspended:
                yield Finish(suspended=True)
        if not suspended:
            yield from self._publish(self._course)

    def _publish(self, course: Course) -> Iterator[Effect]:
        """Send the model of this round to all who read it."""
        flags = Flag.LAST if self.round == course.rounds else Flag.NONE
        self._flags = self._checkpoint_flags(course)
        flags |= self._flags
        if self._statistics and course.epochs_before(self.round):
            flags |= Flag.STATISTICS
        for reader in self._cast.readers():
            yield Send(
                reader,
                Message(Kind.MODEL, self.peer, self._run_id, self.round, self.peer.index, flags, payload=self._model),
            )
        if Flag.LAST in flags:
            yield Save(f"final/{self.peer}", self._model)
            yield Finish()
        else:
            yield SetDeadline(self._missing)

    @property
    def _missing(self) -> tuple[Peer, ...]:
        if self._collector is not None:
            return self._collector.waiting_for
        return tuple(peer for peer in self._validators if peer not in self._combined)

    def _take_combined(self, source: Peer, message: Message) -> Iterator[Effect]:
        reason = wrong_size(message, self._model.size)
        if message.round != self.round or source in self._combined:
            yield rejection(source, f"a second or untimely message (of round {message.round})")
            return
        if reason:
            yield from self._refuse(source, reason)
            return
        combined = Updates.of(message.values[None, :], self._layout)
        refused = screen(combined)
        if refused.any():
            yield not_finite(source, refused[0])
        self._combined[source] = combined.without(refused)
        self._flags |= message.flags & ECHOED
        yield from self._apply_when_ready()

    def _refuse(self, source: Peer, reason: str) -> Iterator[Effect]:
        """Count what is no message as a contribution of nothing, so that the run goes on."""
        if self._collector is not None:
            yield from self._collector.refuse(source, reason)
        else:
            yield rejection(source, reason)
            if self._course is not None and source in self._validators:
                self._combined.setdefault(source, Updates.nothing(self._layout))
        yield from self._apply_when_ready()

    def _apply_when_ready(self) -> Iterator[Effect]:
        if self._course is None or self._applying:
            return
        yield SetDeadline(self._missing)
        if not self._missing:
            self._applying = True
            shares = len(self._combined) * self._model.size
            elements = shares if self._collector is None else self._collector.elements
            yield Compute("combine", self._apply, elements=elements)

    def _apply(self) -> Combined:
        """Add the round's update to the model: the mean over validators, added up in validator order."""
        if self._collector is not None:
            rule = self._run.validation.rule
            assert isinstance(rule, Rule), "the specification has been checked"
            return self._collector.combine(rule, base=self._model, out=self._next)
        updates = Updates.join([self._combined[peer] for peer in self._validators])
        return Average().combine(updates, base=self._model, out=self._next)

    def _applied(self, combined: Combined) -> Iterator[Effect]:
        assert self._course is not None
        self._applying = False
        self._model, self._next = combined.update, self._model
        self._combined.clear()
        fields: dict[str, object] = {}
        if self._collector is not None:
            fields, rejections = self._collector.report()
            yield from rejections
            self._collector.clear()
        yield Record("round", fields)
        if not self._diverged and not combined.finite:
            self._diverged = True
            yield Record("diverged", {"what": "the model is not finite"})
        self.round += 1
        if self._flags & Flag.SNAPSHOT:
            yield Snapshot(self.round, self.state())
        else:
            yield from self._publish(self._course)
