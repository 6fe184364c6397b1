"""The driver of a role in a replay: events from outside come in the recorded order."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hpcps.errors import RunError, message_of, text_of
from hpcps.execution.account import IDLE, RESULT, SAME, STOP, TIMER
from hpcps.execution.role_driver import RoleDriver
from hpcps.protocol.messages import Peer
from hpcps.protocol.received import Reduced
from hpcps.records.attempts import Attempt, DifferenceError
from hpcps.records.checkpoint import CheckpointPart
from hpcps.records.files import decode
from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import RecordWriter
from hpcps.roles.evaluation_job import Died, EvaluationJob, ModelEvaluations
from hpcps.roles.events import Compute, Computed, Event, Idle, InBackground, Role, Snapped, StopRequested
from hpcps.transport.inproc import InprocTransport

_ALL = 10**9
"""The number of checkpoints to keep."""


class ComparedRecord(RecordWriter):
    """A record whose lines are compared with those of an attempt."""

    def __init__(self, folder: Path, run_id: str, peer: Peer, attempt: Attempt, part: CheckpointPart | None) -> None:
        super().__init__(folder, run_id, peer.role, peer.index, "replay", part=part, attempt=attempt.number)
        self._attempt = attempt

    def _append(self, line: bytes) -> None:
        super()._append(line)
        decoded = decode(line)
        assert decoded is not None, "it has just been encoded"
        self._attempt.compare(decoded)


class ReplayDriver(RoleDriver):
    """Gives a role its messages and timers in the recorded order, whatever the time; stops after the last one.

    What a role computes follows from its events in their order: its own computations come as in every run.

    Attributes:
        attempt: the recorded attempt.
        snapshots: the checksum of its part of each checkpoint, by position.
    """

    def __init__(
        self, role: Role, inbox: InprocTransport, record: ComparedRecord, directory: RunDirectory, attempt: Attempt
    ) -> None:
        self.attempt = attempt
        self.snapshots: dict[int, str] = {}
        self._inbox = inbox
        # The clock counts the moments at which messages come; imposed times end when the record says so.
        self._moments = 0
        super().__init__(role, inbox, record, directory, clock=lambda: float(self._moments), keep=_ALL, ordered=True)

    def _background_result(self) -> Computed | None:
        if self._finished is None or self.attempt.expected != RESULT:
            return None
        self.attempt.advance()
        return super()._background_result()

    def _next(self) -> Event | None:
        event = self._expected(self.attempt.expected)
        if event is not None:
            self.attempt.advance()
        return event

    def _expected(self, name: str | None) -> Event | None:
        if name == IDLE and self._draining:
            self._draining = False
            return Idle()
        if name == STOP:
            return StopRequested()
        if name == TIMER:
            event = self._alarms.pop()
            if isinstance(event, Computed):
                self._account.note(TIMER)
            return event
        role, _, index = (name or "").removeprefix(SAME).rpartition("-")
        arrival = self._inbox.receive_from(Peer(role, int(index))) if index.isdecimal() else None
        if arrival is None or isinstance(arrival, Reduced):
            return None
        self._moments += not str(name).startswith(SAME)
        return self._opened(arrival)

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

    def take(self) -> Event | None:
        """Return the next event for the role, if it is available."""
        event = super().take()
        if isinstance(event, Snapped):
            self.snapshots[event.position] = event.checksum
        return event

    @property
    def has_messages(self) -> bool:
        """Whether messages wait for it."""
        return self._inbox.arrived


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
