"""One process of an `mpirun`: takes its role from the plan and plays it in one run after another."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType

import numpy as np
from mpi4py import MPI

from hpcps.errors import HpcpsError
from hpcps.launch.plan import Plan, PlannedRun, Rank
from hpcps.launch.verify import problems
from hpcps.messages import Peer
from hpcps.records.provenance import provenance, source_state
from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import RecordWriter
from hpcps.roles.cast import Cast
from hpcps.roles.events import Role
from hpcps.runtime.casting import make_role
from hpcps.runtime.node import Node
from hpcps.spec.schema import Run
from hpcps.transport.mpi import MpiTransport
from hpcps.transport.patience import Patience

_PROBLEM_BYTES = 4096


class Stopped(Exception):  # noqa: N818 (it is no error)
    """The process was asked to end by a signal."""


def play(plan: Plan, role: str) -> int:
    """Verify this process's place in the plan and play its role in every run; return the exit status."""
    signal.signal(signal.SIGTERM, _stop)
    try:
        return _play(plan, role, MPI.COMM_WORLD)
    except (Stopped, KeyboardInterrupt):
        return 128 + signal.SIGTERM


def _play(plan: Plan, role: str, communicator: MPI.Intracomm) -> int:
    host = socket.gethostname()
    rank, size = communicator.Get_rank(), communicator.Get_size()
    ranks = {Peer(member.role, member.index): member.rank for member in plan.world}
    transport = MpiTransport(communicator, ranks)
    if not _agree(transport, communicator, "\n".join(problems(plan, rank, size, role, host))):
        return 2
    me = plan.world[rank]
    return 0 if all(_play_one(planned, me, host, communicator, transport) for planned in plan.runs) else 1


def _play_one(planned: PlannedRun, me: Rank, host: str, communicator: MPI.Intracomm, transport: MpiTransport) -> bool:
    """Play one run to its end; say whether it went well."""
    began = time.monotonic()
    run = Run.model_validate(planned.spec["run"])
    directory = RunDirectory(Path(planned.directory))
    cast = Cast(run.topology.servers, run.topology.validators, run.topology.workers)
    peer = Peer(me.role, me.index)
    problem, role = "", None
    try:
        if me.rank == 0:
            _prepare(planned, run, directory)
        # A plan may hold runs of several sizes; who has no part in this one waits for the next.
        if peer in (*cast.readers(), *cast.all_servers()):
            role = make_role(run, planned.run_id, peer)
    except HpcpsError as error:
        problem = str(error)
    if not _agree(transport, communicator, problem):
        return False
    if role is not None and not _perform(role, planned, run, directory, me, host, transport):
        return False
    transport.barrier()
    if me.rank == 0:
        directory.finish(time.monotonic() - began)
    return True


def _perform(
    role: Role, planned: PlannedRun, run: Run, directory: RunDirectory, me: Rank, host: str, transport: MpiTransport
) -> bool:
    """Play the role from start to end; say whether it went well."""
    with RecordWriter(directory.path, planned.run_id, me.role, me.index, host) as record:
        record.write("start", pid=os.getpid(), rank=me.rank, transport="mpi", threads=run.train.threads, gpu=me.gpu)
        node = Node(role, transport, record, directory)
        try:
            _drive(node, run.transport.timeout)
        except (Stopped, KeyboardInterrupt):
            record.write("end", reason="stopped", round=node.round)
            raise
        except Exception as error:
            record.write("end", reason="failed", round=node.round, error=str(error))
            directory.fail(me.role, me.index, host, node.round, node.phase, error)
            where = (
                f"{me.role}-{me.index} on {host} failed in round {node.round} ({node.phase}) of run {planned.run_id}"
            )
            print(f"hpcps: {where}: {error}", file=sys.stderr, flush=True)
            return False
    return True


def _prepare(planned: PlannedRun, run: Run, directory: RunDirectory) -> None:
    """Make the run's folder, with what it is and where it comes from."""
    directory.check_writable()
    directory.create(planned.spec)
    code = source_state(Path(__file__).parent)
    facts = provenance(sys.argv, code)
    facts |= {"seed": run.seed, "mpi": MPI.Get_library_version().strip("\0\n "), "mpi_standard": MPI.Get_version()}
    directory.write_provenance(facts, code.uncommitted)


def _drive(node: Node, timeout: float) -> None:
    """Step the node until it is done; wait patiently in between, but not for ever."""
    patience = Patience()
    heard = time.monotonic()
    while not node.finished:
        if node.step():
            patience.reset()
            heard = time.monotonic()
        elif time.monotonic() - heard > timeout:
            raise node.late(timeout)
        else:
            patience.wait()


def _agree(transport: MpiTransport, communicator: MPI.Intracomm, problem: str) -> bool:
    """Let all ranks know each other's problems: one rank prints each of them once; say whether there are none."""
    # Ranks come here at very different times (some import a framework): wait for the last one without spinning.
    transport.barrier()
    mine = np.zeros(_PROBLEM_BYTES, np.uint8)
    text = problem.encode()[:_PROBLEM_BYTES]
    mine[: len(text)] = np.frombuffer(text, np.uint8)
    everyone = np.empty((communicator.Get_size(), _PROBLEM_BYTES), np.uint8)
    communicator.Allgather(mine, everyone)
    found = dict.fromkeys(row.tobytes().rstrip(b"\0").decode(errors="replace") for row in everyone if row[0])
    if found and communicator.Get_rank() == 0:
        lines = dict.fromkeys(line for problem in found for line in problem.splitlines())
        print("\n".join(f"hpcps: {line}" for line in lines), file=sys.stderr, flush=True)
    # Nobody leaves before the message is out: the launcher kills the job at the first exit.
    transport.barrier()
    return not found


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped(f"signal {number}")
