"""One role at work: carries out what it asks for and tells it what happens."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from hpcps.errors import RunError
from hpcps.messages import Malformed, Peer, Received
from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import RecordWriter
from hpcps.roles.events import (
    Aside,
    Compute,
    Computed,
    Drain,
    Effect,
    Event,
    Finish,
    Idle,
    Now,
    Pause,
    Record,
    Resumed,
    Role,
    Save,
    Seal,
    Send,
    SetDeadline,
    Settle,
    Snapped,
    Snapshot,
    Start,
    StopRequested,
)
from hpcps.runtime.account import Account
from hpcps.runtime.sideline import Sideline
from hpcps.runtime.stopwatch import Stopwatch
from hpcps.trace.tracer import TOLD_APART, Tracer
from hpcps.transport.base import Transport

_ASK_EVERY = 0.2
"""Seconds between two looks for a request to stop."""


class Node:
    """Drives a role over a transport; `step` does what there is to do and never blocks.

    Attributes:
        finished: whether the role is done.
        suspended: whether it ended at a checkpoint, to go on from there another time.
        waiting_for: whom the role waits for.
        phase: what it does right now, for the report of a failure.
    """

    def __init__(
        self,
        role: Role,
        transport: Transport,
        record: RecordWriter,
        directory: RunDirectory,
        *,
        slowdown: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        stopwatch: Stopwatch | None = None,
        tracer: Tracer | None = None,
        sideline: Sideline | None = None,
        stop: Callable[[], bool] = lambda: False,
        keep: int = 2,
    ) -> None:
        """Take a role to drive.

        Args:
            role: the role.
            transport: its end of the transport.
            record: where its record lines go.
            directory: the run's folder.
            slowdown: how many times as long its local steps shall take as they do.
            clock: seconds; what pauses and slowed steps are measured by.
            stopwatch: what the times in its record are measured by; by default those of this process.
            tracer: is told what the role does when, if the run is traced.
            sideline: where that runs which the role wants beside its own work; by default that runs at once.
            stop: says whether the run shall stop at its next checkpoint; asked of whom keeps the checkpoints.
            keep: how many checkpoints to keep.
        """
        self._role = role
        self._transport = transport
        self._record = record
        self._directory = directory
        self._queue: deque[Event] = deque([Start()])
        self._stopwatch = stopwatch or Stopwatch()
        self._account = Account(record, transport.traffic, self._stopwatch)
        self._tracer = tracer
        self._sideline = sideline
        self._beside: Computed | None = None
        self._failed_round: int | None = None
        self._checksums: dict[str, str] = {}
        self._slowdown = slowdown
        self._clock = clock
        self._later: tuple[float, Event] | None = None
        self._draining = False
        self._stop = stop if role.keeps_checkpoints else None
        self._asked = 0.0
        self._keep = keep
        self._between, self._resting = "wait", False
        self.finished = self.suspended = False
        self.waiting_for: tuple[Peer, ...] = ()
        self.phase = "start"
        self._leave()

    @property
    def peer(self) -> Peer:
        """The role that this node drives."""
        return self._role.peer

    @property
    def round(self) -> int:
        """The round its role is in; after a failure, the round of what failed."""
        return self._role.round if self._failed_round is None else self._failed_round

    def step(self) -> bool:
        """Handle one event, if there is one; say whether there was."""
        event = self.take()
        if event is None:
            return False
        for _ in self.handle(event):
            pass
        return True

    def take(self) -> Event | None:
        """Return what happens next to the role, if anything does now."""
        self._stopwatch.enter(self._between)
        tracer, rested = self._tracer, self._resting
        start = 0.0 if tracer is None else tracer.clock()
        self._between, self._resting = "wait", False
        self._ask_whether_to_stop()
        event: Event | None = self._ended_beside()
        if event is None and self._queue:
            event = self._queue.popleft()
        if event is None:
            self.phase = "exchange"
            event = self._next()
        if event is None:
            slowed = self._later is not None and isinstance(self._later[1], Computed)
            self.phase = self._between = "train" if slowed else "wait"
            self._stopwatch.rest(self.phase)
            self._account.counts["polls"] += 1
            self._resting = True
            if tracer is not None:
                tracer.write_late() if rested else tracer.rest(self._rest())
            return None
        if tracer is not None:
            tracer.took(event, self._role.round, start)
        self._stopwatch.work()
        return event

    def _rest(self) -> str:
        """Return what it does while it has nothing to do, as a trace calls it."""
        if self._later is None:
            return "wait"
        return "pause" if isinstance(self._later[1], Resumed) else "train"

    def _ended_beside(self) -> Computed | None:
        """Return what ran beside the role, if that is over.

        Raises:
            Exception: what it raised.
        """
        event, self._beside = self._beside, None
        if event is not None or self._sideline is None or (finished := self._sideline.take()) is None:
            return event
        self._stopwatch.add(finished.task, finished.stop - finished.start, finished.cpu)
        if self._tracer is not None:
            self._tracer.beside(finished.task, finished.start, finished.stop, finished.round)
        if finished.error is not None:
            self.phase, self._failed_round = finished.task, finished.round
            raise finished.error
        return Computed(finished.task, finished.result, self._record.time)

    def handle(self, event: Event) -> Iterator[Effect]:
        """Tell the role what happened; yield each effect, which is carried out after that, when the next is asked for.

        So time that an effect is to take can pass in between; no other event is taken meanwhile.
        """
        yield from self._react(event)
        self._leave()

    def _leave(self) -> None:
        """End the role's turn, if it takes turns with others."""
        self._stopwatch.leave()
        if not self._stopwatch.alone and self._tracer is not None:
            self._resting = True
            self._tracer.rest(self._rest())

    def _react(self, event: Event) -> Iterator[Effect]:
        self._account.counts["messages_received"] += isinstance(event, (Received, Malformed))
        for effect in self._role.handle(event):
            beside = isinstance(effect, Aside) and self._sideline is not None
            if isinstance(effect, (Compute, Now, Aside, Settle)) and not beside:
                self._stopwatch.charge("exchange")
                self.phase = "evaluate" if isinstance(effect, Settle) else effect.task
            tracer = None if beside or type(effect) not in TOLD_APART else self._tracer
            start = 0.0 if tracer is None else tracer.begin(effect)
            began = self._clock() if self._slowdown > 1.0 else 0.0
            yield effect
            if isinstance(effect, Settle):
                yield from self._settle(effect, start)
                continue
            self._execute(effect, began)
            if tracer is not None:
                tracer.carried_out(effect, self._role.round, start)

    def _settle(self, effect: Settle, start: float) -> Iterator[Effect]:
        """Wait for what runs beside the role, and tell it the end of that."""
        if self._sideline is not None and self._sideline.busy:
            self._sideline.wait()
            self._stopwatch.charge("wait")
            if self._tracer is not None:
                self._tracer.carried_out(effect, self._role.round, start)
        event = self._ended_beside()
        if event is not None:
            yield from self._react(event)

    def _ask_whether_to_stop(self) -> None:
        if self._stop is None or time.monotonic() - self._asked <= _ASK_EVERY:
            return
        self._asked = time.monotonic()
        if self._stop():
            self._stop = None
            self._queue.append(StopRequested())

    @property
    def resumes(self) -> float | None:
        """When the role goes on by itself, on its clock; None if only a message can move it."""
        return self._later[0] if self._later else None

    def _next(self) -> Event | None:
        """Return what happens next, if anything does now: messages come first."""
        arrival = self._transport.receive()
        if arrival is not None:
            return arrival
        if self._draining:
            self._draining = False
            return Idle()
        if self._later is not None and self._clock() >= self._later[0]:
            event, self._later = self._later[1], None
            return replace(event, time=self._record.time) if isinstance(event, Computed) else event
        return None

    def late(self, seconds: float) -> RunError:
        """The error of a wait that took too long."""
        names = ", ".join(str(peer) for peer in self.waiting_for) or "a message"
        return RunError(
            f"{self._role.peer} waited {seconds:g} s in round {self._role.round} for {names}; see its record, "
            "or raise transport.timeout if a round really takes that long"
        )

    def tell_wait(self) -> None:
        """Record whom the role is waiting for."""
        self._write("waiting", self._waiting())

    def give_up(self, reason: str, error: Exception | None = None) -> None:
        """Record the end of a role that did not finish."""
        fields: dict[str, object] = {"reason": reason, **({"error": str(error)} if error else {})}
        if self.phase == "wait":
            fields |= self._waiting()
        # The record itself may be what could not be written.
        with suppress(RunError):
            self._write("end", fields)

    def _waiting(self) -> dict[str, object]:
        return {"waiting_for": [str(peer) for peer in self.waiting_for]}

    def _execute(self, effect: Effect, began: float) -> None:
        match effect:
            case Send(to, message):
                self._transport.send(to, message)
                self._account.counts["messages_sent"] += 1
            case Compute(task, work):
                done = self._compute(task, work)
                if task == "train" and self._slowdown > 1.0:
                    took = self._clock() - began
                    self._later = (self._clock() + (self._slowdown - 1.0) * took, done)
                else:
                    self._queue.append(done)
            case Now(task, work):
                self._compute(task, work)
            case Aside(task, work, cancel):
                if self._sideline is None:
                    self._beside = self._compute(task, work)
                else:
                    self._sideline.begin(task, self._role.round, work, cancel)
            case Pause(seconds):
                self._later = (self._clock() + seconds, Resumed())
            case Drain():
                self._draining = True
            case SetDeadline(waiting_for):
                self.waiting_for = waiting_for
            case Record(event, fields):
                self._write(event, fields)
            case Save(name, values):
                self.phase = "save"
                self._checksums[name] = self._directory.save(name, values)
            case Snapshot(moment, state):
                self.phase = "checkpoint"
                part = self._record.part(state)
                checksum = self._directory.checkpoints.write(moment, str(self._role.peer), part)
                self._queue.append(Snapped(moment, checksum))
            case Seal(moment, checksums):
                self.phase = "checkpoint"
                self._directory.checkpoints.seal(moment, self._record.run_id, checksums, self._keep)
                self._write("checkpoint", {"moment": moment})
            case Finish(suspended):
                reason = "suspended" if suspended else "finished"
                self._write("end", {"reason": reason, "checksums": self._checksums})
                assert self._sideline is None or not self._sideline.busy, "the role settles before it ends"
                self.finished, self.suspended = True, suspended

    def _compute(self, task: str, work: Callable[[], Any]) -> Computed:
        # numpy warns where float32 overflows; a diverging run is a legitimate result, recorded as such.
        with np.errstate(over="ignore", invalid="ignore"):
            result = work()
        self._stopwatch.charge(task)
        return Computed(task, result, self._record.time)

    def _write(self, event: str, fields: dict[str, object]) -> None:
        self._account.write(event, self.round, fields)
