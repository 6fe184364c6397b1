"""The processes of one attempt in a replay: those that began it, and replacements once they take part."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from hpcps.errors import RunError
from hpcps.execution.account import REPLACED, SKIPPED
from hpcps.execution.replay.driver import ComparedRecord, ReplayDriver, ReplayedEvaluations
from hpcps.execution.replay.mail import Mail, Member
from hpcps.execution.resume import Resume, restore_role
from hpcps.execution.role_factory import arrival_decides, make_role, replicas_of, role_facts
from hpcps.numerics.state import State
from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import EVALUATOR, SERVER_0, Roster
from hpcps.records.attempts import Attempt, DifferenceError
from hpcps.records.checkpoint import CheckpointPart
from hpcps.records.evaluation import DIED
from hpcps.records.files import Prefix, prefix_of, record_file
from hpcps.records.run_directory import RunDirectory
from hpcps.roles.evaluator import EvaluatorRole
from hpcps.roles.events import Role
from hpcps.roles.replacement import Replacement
from hpcps.roles.resources import Resources
from hpcps.spec.schema import Run
from hpcps.spec.simulation import Modelled

Start = tuple[Peer, Mapping[str, Any], Mapping[str, Any]]
"""A process that began an attempt: its role, its `start` line in the run, and the fields of that of the replay."""


class Processes:
    """Executes an attempt until no process has an event.

    Attributes:
        attempts: the recorded attempt of each process.
    """

    def __init__(
        self,
        run: Run,
        attempts: Mapping[Peer, Sequence[Attempt]],
        directory: RunDirectory,
        position: int | None,
    ) -> None:
        """Take the records of an attempt.

        Args:
            run: the run.
            attempts: the attempt of each role, and of its replacements.
            directory: the folder of the replay.
            position: the checkpoint from which the attempt resumes; None if it begins the run.
        """
        self._starts: list[Start] = []
        self._run, self._directory, self._position = run, directory, position
        self._ordered = arrival_decides(run)
        self._roster = roster = Roster.of(run)
        self._resources = Resources(replicas=replicas_of(run))
        self.attempts = {(peer, each.incarnation): each for peer, several in attempts.items() for each in several}
        ends = (each.suspended_in for (peer, _), each in self.attempts.items() if peer != EVALUATOR)
        self._stops_at = next((round for round in ends if round is not None), None)
        scale = run.simulation.model_scale if isinstance(run.simulation, Modelled) else 1.0
        skipped = {member: dict(_skipped(attempt)) for member, attempt in self.attempts.items()}
        self._mail = Mail(roster.everyone(), skipped, scale)
        self._drivers: dict[Member, ReplayDriver] = {}
        self._snapshots: dict[Peer, dict[int, str]] = {peer: {} for peer in roster.everyone()}
        self._killable = frozenset(roster.replaceable(run))
        self._records = ExitStack()
        # The replacement of a process (second) whose messages a role (first) takes.
        self._known: Counter[tuple[Peer, Peer]] = Counter()
        # The replacements of which a role that lets them take part was told.
        self._begun: set[Member] = set()

    def execute(self, started: Callable[[Sequence[Start]], None]) -> None:
        """Start the processes that began the attempt, and give all processes their events until none has one.

        Args:
            started: is told what the started processes are.

        Raises:
            DifferenceError: a role writes another line than that of its record.
            RunError: a role fails, which its record does not state.
        """
        with self._records:
            for member in [member for member in self.attempts if not member[1]]:
                self._start(member)
            started(self._starts)
            # Without a recorded order nothing but the recorded lines says how far an interrupted attempt came.
            while (self._ordered or any(attempt.left for attempt in self.attempts.values())) and (
                any([driver.step() for driver in self._unfinished()]) or self._go_on()  # noqa: C419 - all take a step
            ):
                pass

    def _unfinished(self) -> Iterator[ReplayDriver]:
        """Yield the drivers of unfinished processes; the step of one may end, or start, another one."""
        return (driver for driver in tuple(self._drivers.values()) if not driver.finished)

    def _start(self, member: Member) -> None:
        """Start a process that has a record, from its part of the checkpoint if it began the attempt."""
        (peer, incarnation), attempt = member, self.attempts[member]
        directory, part = self._directory, None
        role = make_role(self._run, peer, self._resources, incarnation)
        if isinstance(role, EvaluatorRole):
            role.evaluations = ReplayedEvaluations(role.evaluations, attempt.following(DIED))
        if incarnation:
            file = record_file(directory.path, str(peer))  # there is none if no predecessor wrote a line
            part = CheckpointPart(State(), prefix_of(file) if file.exists() else Prefix(0), 0.0)
            self._take_over_residual(role, attempt)
        elif self._position is not None and peer != EVALUATOR:
            part = Resume(directory, self._run, (peer,)).part(self._position, peer)
            if problem := restore_role(role, part):
                raise RunError(problem)
        record = ComparedRecord(directory.path, self._run.id, peer, attempt, part)
        self._records.enter_context(record)
        facts = role_facts(self._run, role)
        if not incarnation:
            self._starts.append((peer, attempt.start, facts))
        record.write("start", **facts, **({"incarnation": incarnation} if incarnation else {}))
        self._drivers[member] = ReplayDriver(
            role,
            self._mail.endpoint(member),
            record,
            directory,
            attempt,
            self._snapshots[peer],
            partial(self._replace, peer),
            stops_at=None if self._ordered else self._stops_at,
            ordered=self._ordered,
        )

    # Lost processes and their replacements

    def _take_over_residual(self, role: Role, attempt: Attempt) -> None:
        """Have a replacement begin with what its record says, of a checkpoint of the replay.

        Its predecessors have written all lines of their records, and so their parts. The checkpoint need not be
        complete yet: server 0 may be behind.

        Raises:
            DifferenceError: the replay has no such part.
        """
        if (position := attempt.start.get("residual_from")) is None:
            return
        assert isinstance(role, Replacement), "it has the number of one"
        try:
            if role.peer.role != "worker" or not isinstance(position, int) or self._run.survive.residual == "zero":
                raise RunError("no such process begins with what a checkpoint has")
            role.take_over(position, self._directory.checkpoints.state(position, str(role.peer)))
        except RunError as error:
            what = f"`residual_from`: the record has {position!r}, which the replay cannot use: {error}"
            raise DifferenceError(attempt.starts_at, what) from error

    def _go_on(self) -> bool:
        """Have killed processes compute what others got after their last recorded events; return if any can."""
        lacking = {driver.lacks for driver in self._unfinished()}
        killed = [
            driver
            for member, driver in self._drivers.items()
            if member in lacking and member[0] in self._killable and not driver.attempt.expected
        ]
        return any([driver.go_on() for driver in killed if not driver.finished])  # noqa: C419 - all take a step

    def _replace(self, told: Peer, peer: Peer, incarnation: int) -> bool:
        """Start the replacement of a process when a role that lets it take part is told of it.

        Args:
            told: the role that is told of it.
            peer: the process.
            incarnation: the number of the replacement.

        Returns:
            Whether its predecessors have written all lines of their records, so that it can be told of it now.
        """
        if told in self._roster.deciders_of(self._run, peer) and (peer, incarnation) not in self._begun:
            before = [each for (of, number), each in self.attempts.items() if of == peer and number < incarnation]
            if any(each.left or each.expected for each in before):
                return False
            for each in before:
                each.lost = True
            self._begun.add((peer, incarnation))
            self._mail.begin((peer, incarnation), self._roster.everyone())
            if (peer, incarnation) in self.attempts:  # else it was killed before its first line, and sent nothing
                self._start((peer, incarnation))
        self._known[told, peer] = incarnation
        taken = min(self._known[receiver, peer] for receiver in self._receivers(peer))
        for member in [member for member in self._drivers if member[0] == peer and member[1] < taken]:
            self._drivers.pop(member).kill()
            self._mail.end(member)
        return True

    def _receivers(self, peer: Peer) -> tuple[Peer, ...]:
        """Return the roles that take the messages of a process, and are told that it has a replacement."""
        evaluators = (EVALUATOR,) if self._roster.evaluator and peer == self._roster.coordinator else ()
        if peer.role == "validator":
            return (*self._roster.all_servers(), *self._roster.all_workers(), *evaluators)
        if peer == EVALUATOR:
            return (self._roster.coordinator,)
        return (*self._roster.possible_combiners_of(self._run, peer.index), SERVER_0, *evaluators)

    # What came of it

    def checksum(self, peer: Peer, position: int) -> str | None:
        """Return the checksum of the part of a checkpoint that a role wrote; None if it wrote none."""
        return self._snapshots[peer].get(position)

    def check_progress(self) -> None:
        """Check that the replay of an attempt that ended wrote all its lines.

        Raises:
            DifferenceError: it did not, because the roles wait for events that do not come, or a record is truncated.
        """
        attempts = self.attempts
        if truncated := [attempt.after_last for attempt in attempts.values() if attempt.truncated]:
            raise DifferenceError(truncated[0], "the record ends before its process finished, but the run is done")
        if not all(attempt.ended or attempt.lost for attempt in attempts.values()):
            return
        # Roles wait for one that has messages, but not the one that its record names.
        waiting = [member for member, attempt in attempts.items() if attempt.left]
        if waiting:
            attempt = attempts[min(waiting, key=lambda member: not self._mail.boxes.get(member))]
            expected = f"the event `{attempt.expected}`" if attempt.expected else "another line"
            raise DifferenceError(attempt.stopped_at, f"the record has {expected}, which does not come in the replay")


def _skipped(attempt: Attempt) -> Iterator[tuple[Peer, tuple[int, int]]]:
    """Yield, for each sender that the record of a process names, the first message that did not go to its predecessors.

    The message is given by the number of the sender's process, and by how many messages of this process went to them.
    """
    incarnations: Counter[str] = Counter()
    for name in attempt.order:
        if name.startswith(REPLACED):
            process, _, number = name.removeprefix(REPLACED).partition(" ")
            incarnations[process] = int(number)
        if name.startswith(SKIPPED):
            process, _, number = name.removeprefix(SKIPPED).partition(" ")
            yield Peer.parse(process), (incarnations[process], int(number))
