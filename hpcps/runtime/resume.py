"""Finds the checkpoint that a run goes on from: the newest one that every process can use."""

from __future__ import annotations

from collections.abc import Callable

from hpcps.errors import HpcpsError
from hpcps.messages import Peer
from hpcps.records.checkpoint import Part
from hpcps.records.run_directory import RunDirectory
from hpcps.roles.cast import Cast
from hpcps.roles.events import Role
from hpcps.spec.schema import Run


class Resume:
    """The search, for one process of the run.

    Attributes:
        part: what this process goes on from; None from the start.
    """

    def __init__(self, directory: RunDirectory, run: Run, run_id: str) -> None:
        self._checkpoints = directory.checkpoints
        self._run_id = run_id
        cast = Cast(run.topology.servers, run.topology.validators, run.topology.workers)
        self._everyone = frozenset(map(str, (*cast.all_servers(), *cast.readers())))
        self.part: Part | None = None

    def before(self, moment: int | None) -> int:
        """Return the newest moment before another (None: of all) that has a checkpoint; -1 if there is none."""
        return next((m for m in self._checkpoints.moments() if moment is None or m < moment), -1)

    def take(self, moment: int, peer: Peer | None) -> str:
        """Read the part of a process; say what is wrong with the checkpoint, or nothing."""
        self.part = None
        try:
            self._checkpoints.check(moment, self._run_id, self._everyone)
            if peer is not None:
                self.part = self._checkpoints.read(moment, str(peer))
        except HpcpsError as error:
            return str(error)
        return ""


def take_back(role: Role | None, part: Part | None) -> str:
    """Let a role, if there is one, go on from its part of a checkpoint; say what is wrong with that, or nothing."""
    if role is None or part is None:
        return ""
    try:
        role.restore(part.state)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        return (
            f"the checkpoint of {role.peer} is whole, but not as this version of hpcps writes it "
            f"({type(error).__name__}: {error}); --no-resume starts the run anew"
        )
    return ""


def search(resume: Resume, peer: Peer | None, share: Callable[[int], int], agree: Callable[[str], bool]) -> int:
    """Try checkpoints, the newest first, until one suits all processes; return its moment, -1 if none does.

    Args:
        resume: this process's.
        peer: its role; None if it has no part in the run.
        share: returns what the first process gives to it, to all of them.
        agree: takes a process's problem (empty if none), tells all of them; says whether nobody has one.
    """
    moment = share(resume.before(None))
    while moment >= 0 and not agree(resume.take(moment, peer)):
        moment = share(resume.before(moment))
    if moment < 0:
        resume.part = None
    return moment
