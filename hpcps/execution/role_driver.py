"""The driver of one role: execute its effects and pass events to it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from hpcps.errors import RunError, message_of
from hpcps.execution.account import RESULT, SKIPPED, TIMER, Account
from hpcps.execution.background import BackgroundExecutor
from hpcps.execution.observer import Observations, Observer
from hpcps.execution.stopwatch import Alarms, Stopwatch
from hpcps.numerics.state import State
from hpcps.protocol.envelope import Delivered, Envelopes
from hpcps.protocol.messages import Peer
from hpcps.protocol.received import Lost, Malformed, Received, Reduced, Replaced
from hpcps.records.evaluation import EVALUATION, write_evaluation
from hpcps.records.run_directory import RunDirectory
from hpcps.records.trace.tracer import TIMED_EFFECTS, Tracer
from hpcps.records.writer import RecordLines
from hpcps.roles.events import (
    AwaitBackground,
    Compute,
    Computed,
    Drain,
    Effect,
    Event,
    Finish,
    Idle,
    InBackground,
    Join,
    Now,
    Pause,
    Record,
    Reduce,
    Resumed,
    Role,
    Save,
    SaveEvaluation,
    Seal,
    Send,
    SetDeadline,
    Snapped,
    Snapshot,
    Start,
    StopRequested,
)
from hpcps.transport.base import Arrived, CollectiveTransport, MessageTransport

_DATED = (Start, Computed, Resumed, Snapped)
"""Events that arrive when the role gets them; messages arrive when they come."""

_ASK_EVERY = 0.2
"""Seconds between two checks for a stop request."""


class RoleDriver:
    """Drives a role over a transport; `step` handles an available event and never blocks.

    Attributes:
        finished: whether the role is done.
        suspended: whether it ended at a checkpoint, from which it can resume.
        waiting_for: the peers that the role waits for.
        limited: whether the wait has a limit.
        phase: its current activity, for the report of a failure.
    """

    def __init__(
        self,
        role: Role,
        transport: MessageTransport,
        record: RecordLines,
        directory: RunDirectory,
        *,
        clock: Callable[[], float] = time.monotonic,
        stopwatch: Stopwatch | None = None,
        tracer: Tracer | None = None,
        background: BackgroundExecutor | None = None,
        stop: Callable[[], bool] = lambda: False,
        resize: Callable[[], bool] = lambda: False,
        keep: int = 2,
        observer: Observer | None = None,
        ordered: bool = False,
    ) -> None:
        """Take a role to drive.

        Args:
            role: the role.
            transport: its end of the transport.
            record: the record of the role; its last line is the end of the role, after which the driver closes it.
            directory: the folder of the run.
            clock: returns seconds; measures pauses and slowed steps.
            stopwatch: measures the times in its record; by default in real time.
            tracer: traces the role, if the run is traced.
            background: the background executor; by default, background tasks run immediately.
            stop: returns whether the run shall stop at its next checkpoint; used for the role that keeps checkpoints.
            resize: returns whether it shall stop where an epoch ends, to go on with another number of workers.
            keep: the number of checkpoints to keep.
            observer: is told of record lines and of adopted models.
            ordered: whether the record states the order of the events from outside.
        """
        self._role = role
        self._transport = transport
        self._record = record
        self._directory = directory
        self._queue: deque[Event] = deque([Start()])
        self._stopwatch = stopwatch or Stopwatch()
        self._account = Account(record, transport.traffic, self._stopwatch, [] if ordered else None)
        self._tracer = tracer
        self._background, self._ordered = background, ordered
        self._finished: Computed | None = None
        self._failed_round: int | None = None
        self._checksums: dict[str, str] = {}
        self._clock = clock
        self._alarms = Alarms(clock)
        self._draining = False
        self._envelopes = Envelopes(role.peer, role.run_id)
        self._stop = stop if role.keeps_checkpoints else None
        self._resize = resize if role.keeps_checkpoints else None
        self._asked = 0.0
        self._keep = keep
        self._observer = observer
        self._between, self._resting = "wait", False
        self.finished = self.suspended = False
        self.waiting_for: tuple[Peer, ...] = ()
        self.limited = True
        self.phase = "start"
        self._leave()

    @property
    def peer(self) -> Peer:
        """The role of this driver."""
        return self._role.peer

    @property
    def round(self) -> int:
        """The round of its role; after a failure, the round of the task that failed."""
        return self._role.round if self._failed_round is None else self._failed_round

    def step(self) -> bool:
        """Handle one event, if there is one; return whether there was one."""
        event = self.take()
        if event is None:
            return False
        for _ in self.handle(event):
            pass
        return True

    def take(self) -> Event | None:
        """Return the next event for the role, if one is available now."""
        self._stopwatch.enter(self._between)
        tracer, rested = self._tracer, self._resting
        start = 0.0 if tracer is None else tracer.clock()
        self._between, self._resting = "wait", False
        self._ask_whether_to_stop()
        # A record that states the order of events from outside says nothing of the role's own computations between
        # them: so these come first, also in a replay.
        own = self._ordered and self._queue
        event = (None if own else self._background_result()) or (self._queue.popleft() if self._queue else None)
        if event is None:
            self.phase = "exchange"
            event = self._next()
        if event is None:
            self.phase = self._between = "train" if self._alarms.kind == "train" else "wait"
            self._stopwatch.rest(self.phase)
            self._account.counts["polls"] += 1
            self._resting = True
            if tracer is not None:
                tracer.write_late() if rested else tracer.rest(self._alarms.kind)
            return None
        if tracer is not None:
            tracer.took(event, self._role.round, start)
        self._stopwatch.work()
        return event

    def _background_result(self) -> Computed | None:
        """Return the result of the background task, if it has finished.

        Raises:
            Exception: the exception of the task.
        """
        event, self._finished = self._finished, None
        if event is None and self._background is not None and (finished := self._background.take()) is not None:
            self._stopwatch.add(finished.task, finished.stop - finished.start, finished.cpu)
            if self._tracer is not None:
                self._tracer.background(finished.task, finished.start, finished.stop, finished.round)
            if finished.error is not None:
                self.phase, self._failed_round = finished.task, finished.round
                raise finished.error
            event = Computed(finished.task, finished.result, self._record.time)
        if event is not None:
            self._account.note(RESULT)
        return event

    def handle(self, event: Event) -> Iterator[Effect]:
        """Pass an event to the role; yield each effect and execute it when the caller asks for the next one.

        The caller can thus let the time of an effect pass before its execution. It must not take another event before.
        """
        yield from self._react(event)
        self._leave()

    def _leave(self) -> None:
        """End the turn of the role, if the process has several roles."""
        self._stopwatch.leave()
        if not self._stopwatch.alone and self._tracer is not None:
            self._resting = True
            self._tracer.rest(self._alarms.kind)

    def _react(self, event: Event) -> Iterator[Effect]:
        self._account.took(self.peer, event)
        dated = event._replace(arrived=self._clock()) if isinstance(event, _DATED) else event
        for effect in self._role.handle(dated):
            in_background = isinstance(effect, InBackground) and self._background is not None
            if isinstance(effect, (Compute, Now, InBackground, AwaitBackground)) and not in_background:
                self._stopwatch.charge("exchange")
                self.phase = "evaluate" if isinstance(effect, AwaitBackground) else effect.task
            tracer = None if in_background or type(effect) not in TIMED_EFFECTS else self._tracer
            start = 0.0 if tracer is None else tracer.begin(effect)
            began = self._clock()
            yield effect
            if isinstance(effect, AwaitBackground):
                yield from self._await_background(effect, start)
                continue
            self._execute(effect, began)
            if tracer is not None:
                tracer.carried_out(effect, self._role.round, start)

    def _await_background(self, effect: AwaitBackground, start: float) -> Iterator[Effect]:
        """Wait for the background task, and pass its result to the role."""
        if self._background is not None and self._background.busy:
            self._background.wait()
            self._stopwatch.charge("wait")
            if self._tracer is not None:
                self._tracer.carried_out(effect, self._role.round, start)
        if (event := self._background_result()) is not None:
            yield from self._react(event)

    def _ask_whether_to_stop(self) -> None:
        if self._stop is not None and time.monotonic() - self._asked > _ASK_EVERY:
            self._asked = time.monotonic()
            if self._stop():
                self._stop = None
                self._queue.append(StopRequested())
            if self._resize is not None and self._resize():
                self._resize = None
                self._queue.append(StopRequested(at_epoch=True))

    @property
    def resumes(self) -> float | None:
        """When the role continues by itself, on its clock; None if it waits for a message."""
        return self._alarms.next

    def _next(self) -> Event | None:
        """Return the next event from outside, if one is available now; messages come first."""
        if (arrival := self._receive()) is not None:
            return arrival if isinstance(arrival, Reduced) else self._opened(arrival, self._clock())
        if self._draining:
            self._draining = False
            return Idle()
        event = self._alarms.due()
        if not isinstance(event, Computed):
            return event
        self._account.note(TIMER)
        return event._replace(time=self._record.time)

    def _receive(self) -> Arrived | None:
        """Return what has come from other processes."""
        return self._transport.receive()

    def _opened(
        self, arrival: Delivered | Malformed | Lost | Replaced, moment: float
    ) -> Received | Malformed | Lost | Replaced:
        """Return what the role gets of what has come at a moment."""
        if isinstance(arrival, (Lost, Replaced)):
            return arrival._replace(arrived=moment)
        if isinstance(arrival, Malformed):
            return replace(arrival, arrived=moment)
        if arrival.skipped is not None:
            self._account.note(f"{SKIPPED}{arrival.source} {arrival.skipped}")
        return arrival.opened(self._role.run_id, self._record.time, moment)

    @property
    def end(self) -> Literal["", "suspended", "finished"]:
        """How the role has ended; empty if it has not."""
        if not self.finished:
            return ""
        return "suspended" if self.suspended else "finished"

    def record_wait(self) -> None:
        """Record the peers that the role waits for."""
        self._write("waiting", {"waiting_for": [str(peer) for peer in self.waiting_for]})

    def kill(self) -> None:
        """End without a word, as a process that is killed."""
        self.finished = True
        self._record.close()

    def give_up(self, reason: str, error: BaseException | None = None) -> None:
        """Record the end of a role that did not finish."""
        fields: dict[str, object] = {"reason": reason, **({"error": message_of(error)} if error else {})}
        if self.phase == "wait":
            fields["waiting_for"] = [str(peer) for peer in self.waiting_for]
        # Writing the record may be what failed.
        with suppress(RunError):
            self._write("end", fields)
        self._record.close()

    def _execute(self, effect: Effect, began: float) -> None:
        match effect:
            case Send(to, message):
                envelope = self._envelopes.around(message)
                self._transport.send(to, envelope)
                self._account.sent(to, envelope)
            case Join(peers):
                assert isinstance(self._transport, CollectiveTransport), "the specification has been checked"
                self._transport.join(peers)
            case Reduce(values, operation, soon):
                assert isinstance(self._transport, CollectiveTransport), "the specification has been checked"
                self._transport.reduce(values, operation, soon=soon)
            case Compute(task, work):
                done = self._compute(task, work)
                if task == "adopt" and self._observer is not None:
                    self._observe(self._observer.adopted(self.peer, done.result))
                now = self._clock()
                took = now - began
                if effect.slowdown > 1.0:
                    done = done._replace(seconds=effect.slowdown * took)
                    self._alarms.set(now + (effect.slowdown - 1.0) * took, done)
                elif effect.least > took:
                    self._alarms.set(began + effect.least, done._replace(seconds=effect.least))
                else:
                    if effect.least:
                        self._account.note(TIMER)
                    self._queue.append(done._replace(seconds=took, overran=0.0 < effect.least < took))
            case Now(task, work):
                self._compute(task, work)
            case InBackground(task, work, cancel):
                if self._background is None:
                    self._finished = self._compute(task, work)
                else:
                    self._background.begin(task, self._role.round, work, cancel)
            case Pause(seconds):
                self._alarms.set(self._clock() + seconds, Resumed())
            case Drain():
                self._draining = True
            case SetDeadline(waiting_for, limited):
                self.waiting_for, self.limited = waiting_for, limited
            case Record(event, fields, model):
                self._write(event, fields)
                if self._observer is not None:
                    self._observe(self._observer.recorded(self.peer, event, {"round": self.round, **fields}, model))
            case Save(name, values):
                self.phase = "save"
                self._checksums[name] = self._directory.save(name, values)
            case SaveEvaluation(evaluation):
                self.phase = "save"
                write_evaluation(self._directory.path / EVALUATION, evaluation)
            case Snapshot(position, state):
                self.phase = "checkpoint"
                if self._account.order is not None:
                    self._write("snapshot", {"moment": position})
                self._write_part(position, state)
            case Seal(position):
                self.phase = "checkpoint"
                self._seal_checkpoint(effect)
                self._write("checkpoint", {"moment": position})
            case Finish(suspended):
                reason = "suspended" if suspended else "finished"
                self._write("end", {"reason": reason, "checksums": self._checksums})
                self._record.sync()  # before DONE, which has the checksum of the record
                self._record.close()
                assert self._background is None or not self._background.busy, "a role must await its task first"
                self.finished, self.suspended = True, suspended

    def _write_part(self, position: int, state: State) -> None:
        """Write this process's part of a checkpoint."""
        part, record = self._record.part(state), self._record
        checksum = self._directory.checkpoints.write(position, str(self._role.peer), part, record.sync)
        self._queue.append(Snapped(position, checksum))

    def _seal_checkpoint(self, seal: Seal) -> None:
        run_id, keep = self._record.run_id, self._keep
        self._directory.checkpoints.seal(seal.position, run_id, seal.checksums, keep, lasting=seal.lasting)

    def _compute(self, task: str, work: Callable[[], Any]) -> Computed:
        # numpy warns when float32 overflows; divergence is a valid result of a run, and the record shows it.
        with np.errstate(over="ignore", invalid="ignore"):
            result = work()
        self._stopwatch.charge(task)
        return Computed(task, result, self._record.time)

    def _observe(self, found: Observations) -> None:
        """Write what an observer adds to the record; it is no line of the role, so it has no counts and times."""
        if found:
            self._record.write("callback", **found)

    def _write(self, event: str, fields: dict[str, object]) -> None:
        self._account.write(event, self.round, fields)
