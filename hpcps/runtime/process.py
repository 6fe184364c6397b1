"""One process of a launch: takes its role from the plan and plays it in one run after another."""

from __future__ import annotations

import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType

from hpcps.errors import HpcpsError
from hpcps.launch.plan import Plan
from hpcps.launch.stop import StopFile
from hpcps.launch.verify import problems
from hpcps.layout import private
from hpcps.messages import Peer
from hpcps.records.checkpoint import Part
from hpcps.records.provenance import machine, provenance, source_state
from hpcps.records.writer import RecordWriter
from hpcps.roles.events import Role
from hpcps.roles.resources import Resources
from hpcps.runtime.agreement import agree, nothing
from hpcps.runtime.casting import make_role, memory_facts
from hpcps.runtime.engagement import Engagement
from hpcps.runtime.node import Node
from hpcps.runtime.resume import Resume, search, take_back
from hpcps.runtime.sideline import Background
from hpcps.runtime.stopwatch import Stopwatch
from hpcps.runtime.tracing import compare, tracing
from hpcps.trace.clocks import Clocks
from hpcps.trace.tracer import Tracer
from hpcps.transport.gathering import Gathering, LostError
from hpcps.transport.patience import Patience


class Stopped(BaseException):
    """The process was asked to end by a signal."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def play(plan: Plan, role: str, stop: StopFile, gathering: Gathering, *, mps: bool = False) -> int:
    """Verify this process's place in the plan and play its role in every run; return the exit status.

    Args:
        plan: who every rank is, and what they play.
        role: what the configfile makes of this process; empty if it leaves that to the plan.
        stop: once it is there, the run stops at its next checkpoint and no further one begins.
        gathering: the processes.
        mps: whether this process uses its GPU through MPS.
    """
    _on_stop(stop.listener(_stop))
    try:
        status = _play(plan, role, stop, gathering, mps)
        if status == 0:
            gathering.leave()
        return status
    except Stopped as stopped:
        return 128 + stopped.number
    except HpcpsError as error:
        sys.stderr.write(f"hpcps: {plan.world[gathering.rank]} on {socket.gethostname()}: {error}\n")
        return 1
    finally:
        # It ends anyway.
        _on_stop(_overhear)


def _play(plan: Plan, role: str, stop: StopFile, gathering: Gathering, mps: bool) -> int:
    host = socket.gethostname()
    if not agree(gathering, "\n".join(problems(plan, gathering.rank, gathering.size, role, host))):
        return 2
    # Once for all runs: to meet costs them time, and who has which clock stays as it is.
    me = plan.world[gathering.rank]
    clocks = Clocks(gathering, Peer(me.role, me.index)) if plan.trace else None
    for planned in plan.runs:
        if gathering.share(stop.requested()):
            if gathering.rank == 0:
                print("hpcps: stopped; start it again to go on", flush=True)
                stop.clear()
            break
        part = Engagement(planned, plan.world, gathering.rank, host, mps=mps)
        try:
            if not _play_one(part, stop, gathering, clocks):
                return 1
        except LostError as error:
            part.report(None, "exchange", error)
            raise
    return 0


def _play_one(part: Engagement, stop: StopFile, gathering: Gathering, clocks: Clocks | None) -> bool:
    """Play one run to its end, or to a checkpoint if it shall stop; say whether it went well."""
    role, problem, report = None, "", nothing
    resume = Resume(part.directory, part.run, part.planned.run_id)
    try:
        if part.me.rank == 0:
            _prepare(part, gathering)
        if part.cast:
            shares = part.run.transport.shared_memory == "auto"
            resources = Resources(gathering.allocate if shares else private, part.threads)
            role = make_role(part.run, part.planned.run_id, Peer(part.me.role, part.me.index), resources)
    except Exception as error:
        problem = str(error) if isinstance(error, HpcpsError) else part.failed(None, "start", error)
        report = partial(part.report, None, "start", error)
    if not agree(gathering, problem, report):
        return False
    moment = search(resume, part.peer, gathering.share, partial(agree, gathering))
    if moment >= 0 and not agree(gathering, take_back(role, resume.part)):
        return False
    if moment >= 0 and part.me.rank == 0:
        print(f"hpcps: {part.planned.label} goes on from its checkpoint at {moment}", flush=True)
    if part.me.rank == 0:
        part.directory.checkpoints.forget_after(moment)
    began = time.monotonic() - (resume.part.elapsed if resume.part else 0.0)
    suspended = False
    with tracing(part, clocks) as tracer:
        if role is not None:
            node = _perform(role, part, resume.part, stop, gathering, tracer)
            if node is None:
                return False
            suspended = node.suspended
        # What is still under way, such as an asynchronous worker's last update, must not meet the next run.
        gathering.settle()
        compare(clocks, tracer)
    if not gathering.share(suspended) and part.me.rank == 0:
        part.directory.finish(time.monotonic() - began)
    return True


def _perform(
    role: Role, part: Engagement, before: Part | None, stop: StopFile, gathering: Gathering, tracer: Tracer | None
) -> Node | None:
    """Play the role from start to end; return its node, or None if it failed."""
    me, node = part.me, None
    try:
        with (
            RecordWriter(part.directory.path, part.planned.run_id, me.role, me.index, part.host, part=before) as record,
            Background() as beside,
        ):
            record.write(
                "start",
                pid=os.getpid(),
                rank=me.rank,
                transport=gathering.kind,
                shared_memory=[str(peer) for peer in gathering.in_memory()]
                if part.run.transport.shared_memory == "auto"
                else [],
                partition=part.run.transport.partition,
                threads=part.run.train.threads,
                device=role.device,
                **memory_facts(part.run, me.role, role.device),
                gpu=me.gpu,
                mps=part.mps and role.device != "cpu",
                cpu_model=machine()["cpu"],
            )
            slowdown = part.run.heterogeneity.slowdown(me.role, me.index)
            keep = part.run.checkpoint.keep
            node = Node(
                role,
                gathering.transport,
                record,
                part.directory,
                slowdown=slowdown,
                stopwatch=Stopwatch(cpu=beside.cpu_beside, alone=True),
                tracer=tracer,
                sideline=beside,
                stop=stop.requested,
                keep=keep,
            )
            try:
                drive(node, part.run.transport.timeout, gathering.patience())
            except Stopped:
                node.give_up("stopped")
                raise
            except Exception as error:
                node.give_up("failed", error)
                raise
    except Exception as error:
        round, phase = (node.round, node.phase) if node else (role.round, "start")
        sys.stderr.write(f"hpcps: {part.failed(round, phase, error)}\n")
        part.report(round, phase, error)
        return None
    return node


def _prepare(part: Engagement, gathering: Gathering) -> None:
    """Make the run's folder, with what it is and where it comes from."""
    directory = part.directory
    directory.check_writable()
    # It may be played again, by the same configfile: until it is through, it is not done.
    (directory.path / "DONE").unlink(missing_ok=True)
    directory.create(part.planned.spec)
    code = source_state(Path(__file__).parent)
    facts = provenance(sys.argv, code)
    facts |= {"seed": part.run.seed, **gathering.facts()}
    directory.write_provenance(facts, code.uncommitted)


def drive(node: Node, timeout: float, patience: Patience) -> None:
    """Step the node until it is done; wait patiently in between, but not for ever."""
    heard, told = time.monotonic(), False
    while not node.finished:
        if node.step():
            patience.reset()
            heard, told = time.monotonic(), False
            continue
        now, pause = time.monotonic(), math.inf
        if node.resumes is not None:
            heard, pause = now, max(node.resumes - now, 0.0)  # it waits for nobody
        waited = now - heard
        if waited > timeout:
            raise node.late(timeout)
        if waited > timeout / 2 and not told:
            # Whose patience ends first is chance: the records of all who wait show where it hangs.
            node.tell_wait()
            told = True
        patience.wait(pause)


def _on_stop(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, handler)


def _stop(number: int) -> None:
    # A launcher passes on what its whole group gets as well: once is enough.
    _on_stop(_overhear)
    raise Stopped(number)


def _overhear(number: int, frame: FrameType | None) -> None:
    """Go on; it is no SIG_IGN, as Python complains aloud of a signal that comes just before one."""
