"""The driver of a role in a replay: events from outside come in the recorded order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcps.errors import RunError, message_of, text_of
from hpcps.execution.account import IDLE, LOST, REPLACED, RESULT, SAME, SKIPPED, STOP, STOP_AT_EPOCH, TIMER
from hpcps.execution.replay.mail import MailTransport, Member
from hpcps.execution.role_driver import RoleDriver
from hpcps.protocol.envelope import Delivered
from hpcps.protocol.messages import ModelPartition, Peer, ServedBy
from hpcps.protocol.received import Lost, Replaced
from hpcps.records.attempts import Attempt, DifferenceError
from hpcps.records.checkpoint import CheckpointPart
from hpcps.records.files import decode
from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import RecordWriter
from hpcps.roles.evaluation_job import Died, EvaluationJob, ModelEvaluations
from hpcps.roles.events import Compute, Computed, Effect, Event, Idle, InBackground, Role, Send, Snapped, StopRequested

_ALL = 10**9
"""The number of checkpoints to keep."""


class ComparedRecord(RecordWriter):
    """A record whose lines are compared with those of an attempt; it ends where that of a lost process does."""

    def __init__(self, folder: Path, run_id: str, peer: Peer, attempt: Attempt, part: CheckpointPart | None) -> None:
        super().__init__(folder, run_id, peer.role, peer.index, "replay", part=part, attempt=attempt.number)
        self._attempt = attempt

    def append(self, line: bytes) -> None:
        decoded = decode(line)
        assert decoded is not None, "it has just been encoded"
        if self._attempt.lost and not self._attempt.left and decoded["event"] != "start":
            return
        super().append(line)
        self._attempt.compare(decoded)


class ReplayDriver(RoleDriver):
    """Gives a role its messages and timers in the recorded order, whatever the time; stops after the last one.

    What a role computes follows from its events in their order: its own computations come as in every run.

    Attributes:
        attempt: the recorded attempt.
        lacks: the process whose next message the role waits for.
    """

    def __init__(
        self,
        role: Role,
        inbox: MailTransport,
        record: ComparedRecord,
        directory: RunDirectory,
        attempt: Attempt,
        snapshots: dict[int, str],
        replace: Callable[[Peer, int], bool],
        *,
        stops_at: int | None,
        ordered: bool,
    ) -> None:
        """Take a role to drive.

        Args:
            role: the role.
            inbox: its end of the mail.
            record: its record.
            directory: the folder of the replay.
            attempt: as the attribute.
            snapshots: takes the checksum of the role's part of each checkpoint, by position.
            replace: called when the role is to be told of the replacement of another one, which has a number; returns
                whether it can be told now.
            stops_at: the round whose model comes after the checkpoint at which the run was suspended; None if it was
                not, or if the order of events says when it was asked to stop.
            ordered: whether the record states the order of events; else any order gives the same.
        """
        self.attempt = attempt
        self._snapshots = snapshots
        self.lacks: Member | None = None
        self._inbox = inbox
        self._replace = replace
        self._goes_on = False
        # The clock counts the moments at which messages come; imposed times end when the record says so.
        self._moments = 0
        self._given = role.round - 1  # the round of the last model that it has sent
        self._stops_at = stops_at if role.keeps_checkpoints else None
        clock = lambda: float(self._moments)  # noqa: E731 - it reads what this role will be
        super().__init__(role, inbox, record, directory, clock=clock, keep=_ALL, ordered=ordered)

    def _execute(self, effect: Effect, began: float) -> None:
        if isinstance(effect, Send) and isinstance(effect.message, ModelPartition):
            self._given = effect.message.round
        super()._execute(effect, began)

    def _background_result(self) -> Computed | None:
        if not self._ordered:
            return super()._background_result()
        if self._finished is None or self.attempt.expected != RESULT:
            return None
        self.attempt.advance()
        return super()._background_result()

    def _next(self) -> Event | None:
        self.lacks = None
        if not self._ordered:
            return self._unrecorded()
        while (name := self.attempt.expected) is not None and name.startswith(SKIPPED):
            self._account.note(name)  # the mail knows it
            self.attempt.advance()
        if name is None:
            return self._unrecorded() if self._goes_on else None
        event = self._expected(name)
        if event is not None:
            self.attempt.advance()
        return event

    def _expected(self, name: str) -> Event | None:
        if name == IDLE and self._draining:
            self._draining = False
            return Idle()
        if name in (STOP, STOP_AT_EPOCH):
            return StopRequested(at_epoch=name == STOP_AT_EPOCH)
        if name == TIMER:
            return self._timer()
        if name.startswith(LOST):
            return self._opened(Lost(Peer.parse(name.removeprefix(LOST)), ""), self._clock())
        if name.startswith(REPLACED):
            process, _, number = name.removeprefix(REPLACED).partition(" ")
            peer, incarnation = Peer.parse(process), int(number)
            if not self._replace(peer, incarnation):
                return None
            self._inbox.replace(peer, incarnation)
            return self._opened(Replaced(peer, incarnation), self._clock())
        role, _, index = name.removeprefix(SAME).rpartition("-")
        if not index.isdecimal():
            return None
        source = Peer(role, int(index))
        arrival = self._inbox.receive_from(source)
        if arrival is None:
            self.lacks = self._inbox.sender(source)
            return None
        self._moments += not name.startswith(SAME)
        return self._opened(arrival, self._clock())

    def _timer(self) -> Event | None:
        event = self._alarms.pop()
        if isinstance(event, Computed):
            self._account.note(TIMER)
        return event

    def _unrecorded(self) -> Event | None:
        if (event := self._timer()) is not None:
            return event
        while (arrival := self._inbox.receive()) is not None:
            # A worker records whom it sends its updates before it does so.
            changes = isinstance(arrival, Delivered) and isinstance(arrival.envelope.message, ServedBy)
            if not (self._goes_on and changes):
                return self._opened(arrival, self._clock())
        return self._expected(IDLE) if self._draining else None

    def step(self) -> bool:
        """Handle the next event, if it is available; return whether it was.

        Raises:
            DifferenceError: the role writes other lines than those of the record.
            RunError: the role fails, which its record does not state.
        """
        try:
            return super().step()
        except DifferenceError:
            raise
        except (Exception, SystemExit) as error:  # a plugin may call sys.exit
            if self.attempt.failure != message_of(error):
                raise RunError(
                    f"{self.peer} fails in the replay in round {self.round} ({self.phase}): {text_of(error)}"
                ) from error
            self.finished = True
            return True

    def go_on(self) -> bool:
        """Handle an event after the last one that a killed process recorded, if any is available; see `step`.

        Which one comes first makes no difference to what the worker of a synchronous run sends. In an asynchronous run
        a process that may be lost writes a line before what it sends depends on that.
        """
        self._goes_on = True
        try:
            return self.step()
        finally:
            self._goes_on = False

    def take(self) -> Event | None:
        """Return the next event for the role, if it is available."""
        # It is asked to stop as late as possible: before the model whose round ends with the checkpoint.
        if self._stops_at is not None and self._given >= self._stops_at - 2:
            self._stops_at = None
            self._queue.append(StopRequested())
        event = super().take()
        if isinstance(event, Snapped):
            self._snapshots[event.position] = event.checksum
        return event


class ReplayedEvaluations(ModelEvaluations):
    """Evaluates with other evaluations, except where the record says that the process had ended."""

    def __init__(self, evaluations: ModelEvaluations, deaths: Iterable[Mapping[str, Any]]) -> None:
        """Take evaluations, and the recorded lines `evaluator_died` of an attempt."""
        self.pid, self.device = evaluations.pid, evaluations.device
        self.parameters, self.statistics = evaluations.parameters, evaluations.statistics
        self._evaluations = evaluations
        self._deaths = deque(deaths)

    def evaluating(self, job: EvaluationJob) -> Compute | InBackground:
        if not self._deaths or self._deaths[0].get("round") != job.round:
            return self._evaluations.evaluating(job)
        line = self._deaths.popleft()
        self.pid = line.get("next_pid", 0)
        died = Died(line.get("pid", 0), line.get("how", ""))
        return InBackground("evaluate", lambda: (job, died), self.cancel)

    def restart(self) -> None:
        pass  # `evaluating` has taken the number of the next process from the record

    def cancel(self) -> None:
        self._evaluations.cancel()
