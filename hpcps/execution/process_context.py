"""The role of one process in one run of a launch, and its trace."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hpcps.execution.role_factory import spread
from hpcps.execution.standby.seats import Seat
from hpcps.launch.limits import own_cores
from hpcps.launch.plan import PlannedRun, Rank
from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import STANDBY, Roster
from hpcps.records.failure import failure_text
from hpcps.records.run_directory import PLUGINS, RunDirectory
from hpcps.records.trace.clocks import Clocks
from hpcps.records.trace.tracer import Tracer, names_of
from hpcps.registry import activate
from hpcps.registry.plugins import registry_of
from hpcps.spec.members import members_of
from hpcps.spec.schema import Run
from hpcps.transport.process_group import LostError


def planned_run(planned: PlannedRun) -> Run:
    """Activate the plugins of a run, and return the run."""
    activate(registry_of(planned.plugins, Path(planned.directory) / PLUGINS))
    run = Run.model_validate(planned.spec["run"]).identified(planned.run_id)
    return run.resized(members_of(planned.spec))


class ProcessContext:
    """The context of one process in one run.

    Attributes:
        planned: the entry of the run in the plan.
        run: the run.
        directory: the folder of the run.
        world: the entries of all processes in the plan, by rank.
        me: that of this process.
        host: the host of the process.
        mps: whether the process uses its GPU through MPS.
        seat: what the process is to its role. One that replaces a lost server is the standby of the process that is now
            the server.
    """

    def __init__(
        self,
        planned: PlannedRun,
        world: Sequence[Rank],
        rank: int,
        host: str,
        *,
        mps: bool = False,
        incarnation: int = 0,
    ) -> None:
        """Create the context of one process, and activate the plugins of the run.

        Args:
            planned: the run.
            world: all processes, by rank.
            rank: the rank of the process.
            host: the host of the process.
            mps: whether the process uses its GPU through MPS.
            incarnation: the number of the replacement that the process is; 0 if it is none.
        """
        me = world[rank]
        self.planned = planned
        self.run = spread(planned_run(planned), len({member.host for member in world}))
        self.directory = RunDirectory(Path(planned.directory))
        self.world, self.me = world, me
        self.host = host
        self.mps = mps
        self.seat = Seat.ALONE
        if incarnation and me.role in ("server", STANDBY):
            self.seat = Seat.NEW_STANDBY
        elif me.role == STANDBY:
            self.seat = Seat.STANDBY
        elif me.role == "server" and self.run.survive.servers:
            self.seat = Seat.SERVER
        self._neighbours = [member for member in world if member.host == me.host]

    @property
    def active(self) -> bool:
        """Whether the process has a role in this run; without a role it waits for the next run of the plan."""
        return self.peer is not None

    @property
    def peer(self) -> Peer | None:
        """The role of the process in this run, or None; that of a standby is its server's."""
        peer = Peer("server" if self.seat.stands_by else self.me.role, self.me.index)
        return peer if peer in Roster.of(self.run).everyone() else None

    @property
    def everyone(self) -> tuple[str, ...]:
        """The names of all roles of this run, such as `worker-3`."""
        return tuple(map(str, Roster.of(self.run).everyone()))

    @property
    def threads(self) -> int:
        """The number of threads for combining: the available cores, divided among the combining roles of this host.

        If a launcher binds processes to cores, the available cores are those of this process.
        """
        roles = ("validator",) if self.run.topology.validators else ("server", STANDBY)
        combiners = sum(member.role in roles for member in self._neighbours)
        return max(1, len(own_cores()) // max(combiners, 1))

    def failed(self, round: int | None, phase: str, error: BaseException) -> str:
        """Return a message that names the failed process, its host, the round, the phase and the error."""
        return failure_text(self.me, self.host, round, phase, error, self.planned.run_id)

    def report(self, round: int | None, phase: str, error: BaseException) -> None:
        """Write a report of a failure into the run's folder, if possible; a lost process that caused it comes first.

        All other processes may find out that it is lost; the report of the first one stays, since later ones would have
        later times than the failures that it causes.
        """
        with suppress(OSError):
            if isinstance(error, LostError) and not self.directory.has_failure(error.peer.role, error.peer.index):
                lost = error.peer.role, error.peer.index, error.host
                self.directory.fail(*lost, None, "exchange", error.why, at=error.at)
            self.directory.fail(self.me.role, self.me.index, self.host, round, phase, error)


@contextmanager
def tracing(context: ProcessContext, clocks: Clocks | None) -> Iterator[Tracer | None]:
    """Open the trace of the process, if the run is traced and the process has a role in it; close it at the end.

    Args:
        context: the context of the process.
        clocks: the clocks of all processes if the run is traced, else None; every process of a traced run calls this.
    """
    if clocks is None:
        yield None
    elif context.peer is None or context.seat.stands_by:
        clocks.compare()
        yield None
    else:
        offset = clocks.compare()
        names = names_of(context.peer, context.run.topology.validators)
        folder, run_id, session = context.directory.path, context.planned.run_id, clocks.session
        with Tracer(folder, run_id, context.peer, context.host, session, names=names) as tracer:
            tracer.compare(offset)
            yield tracer


def compare(clocks: Clocks | None, tracer: Tracer | None) -> None:
    """Compare the clocks of all processes again, if the run is traced; every process calls this."""
    if clocks is not None:
        offset = clocks.compare()
        if tracer is not None:
            tracer.compare(offset)
