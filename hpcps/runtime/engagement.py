"""What one process is in one run of a launch."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hpcps.cores import own_cores
from hpcps.errors import HpcpsError
from hpcps.launch.plan import PlannedRun, Rank
from hpcps.messages import Peer
from hpcps.records.run_directory import RunDirectory
from hpcps.roles.cast import Cast
from hpcps.runtime.casting import spread
from hpcps.spec.schema import Run
from hpcps.transport.gathering import LostError


class Engagement:
    """The part that one process has in one run.

    Attributes:
        planned: the run as the plan has it.
        run: the run.
        directory: its folder.
        me: the process.
        host: where it is.
        mps: whether it uses its GPU through MPS.
    """

    def __init__(self, planned: PlannedRun, world: Sequence[Rank], rank: int, host: str, *, mps: bool = False) -> None:
        """Take the part of one process of the launch.

        Args:
            planned: the run.
            world: all processes, by rank.
            rank: which of them it is.
            host: where it is.
            mps: whether it uses its GPU through MPS.
        """
        me = world[rank]
        self.planned = planned
        self.run = spread(Run.model_validate(planned.spec["run"]), len({member.host for member in world}))
        self.directory = RunDirectory(Path(planned.directory))
        self.me = me
        self.host = host
        self.mps = mps
        self._neighbours = [member for member in world if member.host == me.host]

    @property
    def cast(self) -> bool:
        """Whether it plays: a plan may hold runs of several sizes; who has no part in this one waits for the next."""
        return self.peer is not None

    @property
    def peer(self) -> Peer | None:
        """Its role in this run, if it plays."""
        cast = Cast.of(self.run)
        peer = Peer(self.me.role, self.me.index)
        return peer if peer in (*cast.readers(), *cast.all_servers()) else None

    @property
    def threads(self) -> int:
        """How many threads may combine: the cores that this process may use, divided among those that do here.

        A launcher that binds processes to cores leaves each its own.
        """
        role = "validator" if self.run.topology.validators else "server"
        combiners = sum(member.role == role for member in self._neighbours)
        return max(1, len(own_cores()) // max(combiners, 1))

    def failed(self, round: int | None, phase: str, error: Exception) -> str:
        """Say who failed, where, when and why."""
        when = f" in round {round}" if round is not None else ""
        kind = "" if isinstance(error, HpcpsError) else f"{type(error).__name__}: "
        return f"{self.me} on {self.host} failed{when} ({phase}) of run {self.planned.run_id}: {kind}{error}"

    def report(self, round: int | None, phase: str, error: Exception) -> None:
        """Leave a report of a failure in the run's folder, if there is room for one; first one of who caused it."""
        with suppress(OSError):
            if isinstance(error, LostError):
                self.directory.fail(error.peer.role, error.peer.index, error.host, None, "exchange", error.why)
            self.directory.fail(self.me.role, self.me.index, self.host, round, phase, error)
