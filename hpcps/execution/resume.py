"""Find the checkpoint from which a run resumes: the newest one that every process can use."""

from __future__ import annotations

import sys
from collections.abc import Callable

from hpcps.errors import HpcpsError
from hpcps.numerics.state import State
from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import EVALUATOR, Roster
from hpcps.records.checkpoint import CheckpointPart
from hpcps.records.run_directory import RunDirectory
from hpcps.roles.events import Role
from hpcps.spec.schema import Run


class Resume:
    """The search for a checkpoint, for one process of the run.

    Attributes:
        part: the part of the checkpoint for this process; None if the run starts from the beginning.
    """

    def __init__(self, directory: RunDirectory, run: Run, run_id: str) -> None:
        self._checkpoints = directory.checkpoints
        self._run_id = run_id
        roster = Roster.of(run)
        self._everyone = frozenset(map(str, roster.with_state()))
        self._coordinator = str(roster.coordinator)
        self.part: CheckpointPart | None = None

    def before(self, position: int | None) -> int:
        """Return the newest checkpoint before `position` (None: the newest of all); -1 if there is none."""
        return next((m for m in self._checkpoints.positions() if position is None or m < position), -1)

    def take(self, position: int, peer: Peer | None) -> str:
        """Read the part of a process; return the problem of the checkpoint, or an empty text."""
        self.part = None
        try:
            self._checkpoints.check(position, self._run_id, self._everyone)
            if peer == EVALUATOR:
                # It has no state, and all lines of its record stay valid: the coordinator records the evaluations.
                elapsed = self._checkpoints.read(position, self._coordinator).elapsed
                self.part = CheckpointPart(State(), sys.maxsize, elapsed)
            elif peer is not None:
                self.part = self._checkpoints.read(position, str(peer))
        except HpcpsError as error:
            return str(error)
        return ""


def take_back(role: Role | None, part: CheckpointPart | None) -> str:
    """Restore a role, if there is one, from its part of a checkpoint; return the problem, or an empty text."""
    if role is None or part is None:
        return ""
    try:
        role.restore(part.state)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        return (
            f"the checkpoint of {role.peer} is complete, but not in the format of this version of hpcps "
            f"({type(error).__name__}: {error}); --no-resume starts the run from the beginning"
        )
    return ""


def search(resume: Resume, peer: Peer | None, share: Callable[[int], int], check: Callable[[str], bool]) -> int:
    """Try checkpoints, the newest first, until all processes can use one; return its position, or -1.

    Args:
        resume: the search of this process.
        peer: the role of this process; None if it has none in this run.
        share: returns the number of rank 0 on every process.
        check: exchanges the problem of each process (empty if it has none); returns whether no process has one.
    """
    position = share(resume.before(None))
    while position >= 0 and not check(resume.take(position, peer)):
        position = share(resume.before(position))
    if position < 0:
        resume.part = None
    return position
