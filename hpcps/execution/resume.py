"""Find the checkpoint from which a run resumes: the newest one that every process can use."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from hpcps.errors import HpcpsError, text_of
from hpcps.execution.resized_parts import joined_part, resized_part
from hpcps.numerics.state import State
from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import EVALUATOR, SERVER_0, Roster
from hpcps.protocol.schedule import Schedule, schedule_of_rounds
from hpcps.records.checkpoint import CheckpointPart
from hpcps.records.files import Prefix, prefix_of, read_lines, record_file
from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import last_attempt
from hpcps.roles.events import Role
from hpcps.roles.replacement import Replacement
from hpcps.spec.schema import Run
from hpcps.training.schedule import beginning


class Resume:
    """The search for a checkpoint, for the roles of one process.

    Attributes:
        parts: the part of the checkpoint for each role of this process; empty if the run starts from the beginning.
    """

    def __init__(self, directory: RunDirectory, run: Run, peers: Sequence[Peer]) -> None:
        """Begin the search.

        Args:
            directory: the folder of the run.
            run: the run.
            peers: the roles of this process; none if it has none in this run.
        """
        self._directory = directory
        self._checkpoints = directory.checkpoints
        self._run_id = run.id
        self._peers = tuple(peers)
        self._run = run
        self._roster = roster = Roster.of(run)
        self._began = run.members[-1].position
        self._coordinator = str(roster.coordinator)
        # The validators that may be lost.
        self._validators = roster.all_validators() if run.survive.validators else ()
        self._synchronous = run.train.mode == "sync"
        self.parts: dict[Peer, CheckpointPart] = {}

    def find(
        self, check: Callable[[str], bool], on_every_process: Callable[[int], int] = lambda position: position
    ) -> int:
        """Try checkpoints, the newest first, until all processes can use one; return its position, or -1.

        Args:
            check: reports the problem of each process (empty if it has none); returns whether no process has one.
            on_every_process: returns the number of rank 0 on every process.
        """
        position = on_every_process(self._before(None))
        while position >= 0 and not check(self._read(position)):
            position = on_every_process(self._before(position))
        if position < 0:
            self.parts = {}
        return position

    def last_attempt(self) -> int:
        """Return the number of the last attempt in the records of the roles; 0 if there is none."""
        return max((last_attempt(record_file(self._directory.path, str(peer))) for peer in self._peers), default=0)

    def _before(self, position: int | None) -> int:
        """Return the newest checkpoint before `position` (None: the newest of all); -1 if there is none.

        None is from a time when the run had another number of workers.
        """
        positions = (m for m in self._checkpoints.positions() if m >= self._began)
        return next((m for m in positions if position is None or m < position), -1)

    def _read(self, position: int) -> str:
        """Read the parts of the roles; return the problem of the checkpoint, or an empty text."""
        try:
            self._check(position)
            self.parts = {peer: self.part(position, peer) for peer in self._peers}
        except HpcpsError as error:
            return str(error)
        return ""

    def _check(self, position: int) -> None:
        """Check that a checkpoint is complete and undamaged; processes that may be lost may have no part.

        Raises:
            RunError: it cannot be used.
        """
        roster = self._writer(position)._roster
        everyone = frozenset(map(str, roster.with_state()))
        replaceable = everyone.intersection(map(str, roster.replaceable(self._run)))
        self._checkpoints.check(position, self._run_id, everyone, replaceable)

    def _writer(self, position: int) -> Resume:
        """Return this search in the run with the number of workers with which it wrote a checkpoint."""
        members = self._run.members
        if len(members) == 1 or position > self._began:
            return self
        return Resume(self._directory, self._run.resized(members[:-1]), self._peers)._writer(position)

    def refusal(self, position: int) -> str:
        """Return why the run cannot begin at its beginning, if `find` has found no checkpoint; else an empty text."""
        if position >= 0 or len(self._run.members) == 1:
            return ""
        return (
            f"{self._directory.path} has no usable checkpoint at or after {self._began}, where the run was resized to "
            f"{self._run.topology.workers} workers: --no-resume starts it from the beginning, with "
            f"{self._run.members[0].workers}"
        )

    def part(self, position: int, peer: Peer) -> CheckpointPart:
        """Return the part with which a role goes on from a checkpoint.

        Raises:
            RunError: it is missing or damaged.
        """
        if peer == EVALUATOR:
            # It has no state, and all lines of its record stay valid: the coordinator records the evaluations.
            everything = self._checkpoints.record_of(position, str(peer))
            # The coordinator may be lost; without servers it is not.
            of = self._coordinator if self._checkpoints.has(position, self._coordinator) else str(SERVER_0)
            return CheckpointPart(State(), everything, self._checkpoints.read(position, of).elapsed)
        if (writer := self._writer(position)) is not self:
            if peer in writer._roster.with_state():
                return resized_part(self._run, peer, writer.part(position, peer))
            lines = self._checkpoints.record_at(position, str(peer))
            elapsed = self._checkpoints.read(position, str(SERVER_0)).elapsed
            return joined_part(self._run, lines, elapsed)
        if peer in self._roster.replaceable(self._run) and not self._checkpoints.has(position, str(peer)):
            part = self._part_of_lost(position, peer)
        else:
            part = self._checkpoints.read(position, str(peer))
        if peer not in self._validators or not self._synchronous:
            return part
        # It serves its own workers again. Another one may have served them, and knows what they owe.
        there = (str(other) for other in self._validators if self._checkpoints.has(position, str(other)))
        owed = {k: v for each in there for k, v in self._checkpoints.read(position, each).state.facts["quorum"].items()}
        return replace(part, state=replace(part.state, facts={**part.state.facts, "quorum": owed}))

    def own_part(self, position: int, peer: Peer) -> State | None:
        """Return the state that a role has written into a checkpoint; None if it has written none, because it was lost.

        So it is for a worker that has left the run since then: another one has its number now.

        Raises:
            RunError: the checkpoint cannot be used.
        """
        self._check(position)
        since = [each.workers for each in self._run.members if each.position >= position]
        left = peer.role == "worker" and peer.index >= min(since, default=self._roster.workers)
        if left or not self._checkpoints.has(position, str(peer)):
            return None
        return self._checkpoints.read(position, str(peer)).state

    def _part_of_lost(self, position: int, peer: Peer) -> CheckpointPart:
        """Return the part of a lost process.

        A worker goes on where its combiner says; a validator at the round, in an asynchronous run where server 0 says.
        """
        combiner = SERVER_0 if self._validators else self._roster.combiners_of(peer.index)[0]
        part = self._checkpoints.read(position, str(combiner))
        facts: dict[str, Any]
        nothing_sent, *_ = beginning(self._run, peer.role, peer.index)
        if peer.role == "validator" and not self._synchronous:
            known = part.state.facts
            place = known["positions"].get(str(peer))
            steps = place["data"][0] if place else nothing_sent
            facts = {"position": place, "lost": known["evaluated"], "positions": known["positions"]}
        elif peer.role == "validator":
            known = part.state.facts
            schedule = schedule_of_rounds(self._run, known["steps_per_epoch"])
            assert isinstance(schedule, Schedule), "the specification has been checked"
            steps = schedule.start(position)
            facts = {"round": position, "lost": known["evaluated"], "positions": known["positions"]}
        else:
            place = part.state.facts.get("positions", {}).get(str(peer))
            steps, facts = place["data"][0] if place else nothing_sent, {"round": position, "position": place}
        lines = self._checkpoints.record_until(steps, str(peer), len(self._run.members))
        if peer.role == "worker" and str(peer) == self._coordinator:
            # The lines of steps that do not count, and the evaluations after them, are not valid any more.
            said = read_lines(record_file(self._directory.path, str(peer))).evaluated(lines.lines) if lines.lines else 0
            facts["lost"] = min(part.state.facts["evaluated"], said)
        return CheckpointPart(State(facts=facts), lines, part.elapsed, of_lost=True)


def lines_before(directory: RunDirectory, run: Run, worker: Peer, attempt: int) -> Prefix:
    """Return the lines of the record of a lost worker that stay valid for its replacement.

    Args:
        directory: the folder of the run.
        run: the run.
        worker: the worker.
        attempt: the number of the attempt.
    """
    own = record_file(directory.path, str(worker))
    if last_attempt(own) == attempt:
        return prefix_of(own)
    # It was lost before its first line of this attempt, which the last checkpoint therefore precedes or does without.
    with suppress(HpcpsError):
        for position in directory.checkpoints.positions()[:1]:
            return Resume(directory, run, (worker,)).part(position, worker).record
    return Prefix(0)


def take_over_residual(role: Role, directory: RunDirectory, run: Run) -> None:
    """Have the replacement of a worker begin with the residual and the momentum that it had at its last checkpoint.

    That is the newest usable one with a part of the worker: those made in its absence have none, and it has sent
    nothing since. If there is none, both stay zero.

    Args:
        role: a role that may be such a replacement.
        directory: the folder of the run.
        run: the run.
    """
    if not isinstance(role, Replacement) or role.peer.role != "worker" or run.survive.residual == "zero":
        return
    search, tried = Resume(directory, run, ()), set[int]()
    # Again and again, because a checkpoint may be removed, after a newer one is complete. A further one that is kept on
    # disk does not count, because results would depend on when it was written.
    while left := [p for p in directory.checkpoints.positions()[: run.checkpoint.keep] if p not in tried]:
        tried.add(left[0])
        with suppress(HpcpsError):
            if (part := search.own_part(left[0], role.peer)) is not None:
                role.take_over(left[0], part)
                return


def restore_role(role: Role | None, part: CheckpointPart | None) -> str:
    """Restore a role, if there is one, from its part of a checkpoint; return the problem, or an empty text."""
    if role is None or part is None:
        return ""
    try:
        role.restore(part.state)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        return (
            f"the checkpoint of {role.peer} is complete, but not in the format of this version of hpcps "
            f"({text_of(error)}); --no-resume starts the run from the beginning"
        )
    return ""
