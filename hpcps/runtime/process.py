"""One process of an `mpirun`: takes its role from the plan and plays it in one run after another."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType

import numpy as np
from mpi4py import MPI

from hpcps.errors import HpcpsError
from hpcps.launch.plan import Plan, PlannedRun, Rank
from hpcps.launch.stop import StopFile
from hpcps.launch.verify import problems
from hpcps.messages import Peer
from hpcps.records.checkpoint import Part
from hpcps.records.provenance import machine, provenance, source_state
from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import RecordWriter
from hpcps.roles.cast import Cast
from hpcps.roles.events import Role
from hpcps.runtime.casting import make_role
from hpcps.runtime.node import Node
from hpcps.runtime.resume import Resume, search
from hpcps.runtime.stopwatch import Stopwatch
from hpcps.spec.schema import Run
from hpcps.transport.mpi import MpiTransport
from hpcps.transport.patience import Patience

_PROBLEM_BYTES = 4096


class Stopped(BaseException):
    """The process was asked to end by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def play(plan: Plan, role: str, stop: StopFile) -> int:
    """Verify this process's place in the plan and play its role in every run; return the exit status.

    Args:
        plan: who every rank is, and what they play.
        role: what the configfile makes of this process; empty if it leaves that to the plan.
        stop: once it is there, the run stops at its next checkpoint and no further one begins.
    """
    _on_stop(stop.listener(_stop))
    try:
        return _play(plan, role, stop, MPI.COMM_WORLD)
    except Stopped as stopped:
        return 128 + stopped.number
    finally:
        # It ends anyway.
        _on_stop(_overhear)


def _play(plan: Plan, role: str, stop: StopFile, communicator: MPI.Intracomm) -> int:
    host = socket.gethostname()
    rank, size = communicator.Get_rank(), communicator.Get_size()
    ranks = {Peer(member.role, member.index): member.rank for member in plan.world}
    transport = MpiTransport(communicator, ranks)
    if not _agree(transport, communicator, "\n".join(problems(plan, rank, size, role, host))):
        return 2
    for planned in plan.runs:
        if _share(transport, communicator, stop.requested()):
            if rank == 0:
                print("hpcps: stopped; start it again to go on", flush=True)
                stop.clear()
            break
        if not _play_one(_Part(planned, plan.world[rank], host), stop, communicator, transport):
            return 1
    return 0


class _Part:
    """What one process is in one run."""

    def __init__(self, planned: PlannedRun, me: Rank, host: str) -> None:
        self.planned = planned
        self.run = Run.model_validate(planned.spec["run"])
        self.directory = RunDirectory(Path(planned.directory))
        self.me = me
        self.host = host

    @property
    def cast(self) -> bool:
        """Whether it plays: a plan may hold runs of several sizes; who has no part in this one waits for the next."""
        return self.peer is not None

    @property
    def peer(self) -> Peer | None:
        """Its role in this run, if it plays."""
        cast = Cast(self.run.topology.servers, self.run.topology.validators, self.run.topology.workers)
        peer = Peer(self.me.role, self.me.index)
        return peer if peer in (*cast.readers(), *cast.all_servers()) else None

    def failed(self, round: int | None, phase: str, error: Exception) -> str:
        """Say who failed, where, when and why."""
        when = f" in round {round}" if round is not None else ""
        kind = "" if isinstance(error, HpcpsError) else f"{type(error).__name__}: "
        return f"{self.me} on {self.host} failed{when} ({phase}) of run {self.planned.run_id}: {kind}{error}"

    def report(self, round: int | None, phase: str, error: Exception) -> None:
        """Leave a report of a failure in the run's folder, if there is room for one."""
        with suppress(OSError):
            self.directory.fail(self.me.role, self.me.index, self.host, round, phase, error)


def _play_one(part: _Part, stop: StopFile, communicator: MPI.Intracomm, transport: MpiTransport) -> bool:
    """Play one run to its end, or to a checkpoint if it shall stop; say whether it went well."""
    role, problem, report = None, "", _nothing
    resume = Resume(part.directory, part.run, part.planned.run_id)
    try:
        if part.me.rank == 0:
            _prepare(part)
        if part.cast:
            role = make_role(part.run, part.planned.run_id, Peer(part.me.role, part.me.index))
    except Exception as error:
        problem = str(error) if isinstance(error, HpcpsError) else part.failed(None, "start", error)
        report = partial(part.report, None, "start", error)
    if not _agree(transport, communicator, problem, report):
        return False
    moment = search(
        resume, part.peer, partial(_share, transport, communicator), partial(_agree, transport, communicator)
    )
    if moment >= 0 and part.me.rank == 0:
        print(f"hpcps: {part.planned.label} goes on from its checkpoint at {moment}", flush=True)
    if part.me.rank == 0:
        part.directory.checkpoints.forget_after(moment)
    began = time.monotonic() - (resume.part.elapsed if resume.part else 0.0)
    suspended = False
    if role is not None:
        if resume.part is not None:
            role.restore(resume.part.state)
        node = _perform(role, part, resume.part, stop, transport)
        if node is None:
            return False
        suspended = node.suspended
    # What is still under way, such as an asynchronous worker's last update, must not meet the next run.
    transport.settle()
    if not _share(transport, communicator, suspended) and part.me.rank == 0:
        part.directory.finish(time.monotonic() - began)
    return True


def _perform(role: Role, part: _Part, before: Part | None, stop: StopFile, transport: MpiTransport) -> Node | None:
    """Play the role from start to end; return its node, or None if it failed."""
    me, node = part.me, None
    try:
        with RecordWriter(
            part.directory.path, part.planned.run_id, me.role, me.index, part.host, part=before
        ) as record:
            record.write(
                "start",
                pid=os.getpid(),
                rank=me.rank,
                transport="mpi",
                threads=part.run.train.threads,
                device=role.device,
                gpu=me.gpu,
                cpu_model=machine()["cpu"],
            )
            slowdown = part.run.heterogeneity.slowdown(me.role, me.index)
            keep = part.run.checkpoint.keep
            node = Node(
                role,
                transport,
                record,
                part.directory,
                slowdown=slowdown,
                stopwatch=Stopwatch(alone=True),
                stop=stop.requested,
                keep=keep,
            )
            try:
                drive(node, part.run.transport.timeout)
            except Stopped:
                node.give_up("stopped")
                raise
            except Exception as error:
                node.give_up("failed", error)
                raise
    except Exception as error:
        phase = node.phase if node else "start"
        print(f"hpcps: {part.failed(role.round, phase, error)}", file=sys.stderr, flush=True)
        part.report(role.round, phase, error)
        return None
    return node


def _share(transport: MpiTransport, communicator: MPI.Intracomm, number: int) -> int:
    """Return rank 0's number to all ranks."""
    transport.barrier()
    shared = np.array([number], np.int64)
    communicator.Bcast(shared)
    return int(shared[0])


def _nothing() -> None:
    """Leave no report."""


def _prepare(part: _Part) -> None:
    """Make the run's folder, with what it is and where it comes from."""
    directory = part.directory
    directory.check_writable()
    # It may be played again, by the same configfile: until it is through, it is not done.
    (directory.path / "DONE").unlink(missing_ok=True)
    directory.create(part.planned.spec)
    code = source_state(Path(__file__).parent)
    facts = provenance(sys.argv, code)
    facts |= {"seed": part.run.seed, "mpi": MPI.Get_library_version().strip("\0\n "), "mpi_standard": MPI.Get_version()}
    directory.write_provenance(facts, code.uncommitted)


def drive(node: Node, timeout: float) -> None:
    """Step the node until it is done; wait patiently in between, but not for ever."""
    patience = Patience()
    heard, told = time.monotonic(), False
    while not node.finished:
        if node.step():
            patience.reset()
            heard, told = time.monotonic(), False
            continue
        if node.resumes is not None:
            heard = time.monotonic()  # it waits for nobody
        waited = time.monotonic() - heard
        if waited > timeout:
            raise node.late(timeout)
        if waited > timeout / 2 and not told:
            # Whose patience ends first is chance: the records of all who wait show where it hangs.
            node.tell_wait()
            told = True
        patience.wait()


def _agree(
    transport: MpiTransport, communicator: MPI.Intracomm, problem: str, report: Callable[[], None] = _nothing
) -> bool:
    """Let all ranks know each other's problems; say whether there are none.

    One rank prints each of them once, and the first one that has any makes its report.
    """
    # Ranks come here at very different times (some import a framework): wait for the last one without spinning.
    transport.barrier()
    mine = np.zeros(_PROBLEM_BYTES, np.uint8)
    text = problem.encode()[:_PROBLEM_BYTES]
    mine[: len(text)] = np.frombuffer(text, np.uint8)
    everyone = np.empty((communicator.Get_size(), _PROBLEM_BYTES), np.uint8)
    communicator.Allgather(mine, everyone)
    found = dict.fromkeys(row.tobytes().rstrip(b"\0").decode(errors="replace") for row in everyone if row[0])
    if communicator.Get_rank() == next(iter(np.flatnonzero(everyone[:, 0])), None):
        report()
    if found and communicator.Get_rank() == 0:
        lines = dict.fromkeys(line for problem in found for line in problem.splitlines())
        print("\n".join(f"hpcps: {line}" for line in lines), file=sys.stderr, flush=True)
    # Nobody leaves before the message is out: the launcher kills the job at the first exit.
    transport.barrier()
    return not found


def _on_stop(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, handler)


def _stop(number: int) -> None:
    # A launcher passes on what its whole group gets as well: once is enough.
    _on_stop(_overhear)
    raise Stopped(number)


def _overhear(number: int, frame: FrameType | None) -> None:
    """Go on; it is no SIG_IGN, as Python complains aloud of a signal that comes just before one."""
