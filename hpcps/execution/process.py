"""One process of a launch: take the role from the plan and execute it in one run after another."""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Literal, NamedTuple, TypeVar

from hpcps.errors import HpcpsError, RunError, message_of
from hpcps.execution.background import Background
from hpcps.execution.device_buffers import Buffers, DeviceBuffers
from hpcps.execution.evaluation_process import EvaluationProcess
from hpcps.execution.observer import Observer
from hpcps.execution.process_context import ProcessContext, compare, tracing
from hpcps.execution.resume import Resume, lines_before, restore_role, take_over_residual
from hpcps.execution.role_driver import RoleDriver
from hpcps.execution.role_factory import arrival_decides, make_role, role_facts
from hpcps.execution.standby.seats import RecordFile, make_driver
from hpcps.execution.stopwatch import Stopwatch
from hpcps.execution.tracking import TrackingProcess
from hpcps.launch.guard import death_line
from hpcps.launch.local_rank import gpu_of, problems
from hpcps.launch.plan import Plan, Rank
from hpcps.launch.stop import StopFile
from hpcps.numerics.layout import private
from hpcps.numerics.state import State
from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import EVALUATOR, SERVER_0, Roster
from hpcps.records.checkpoint import CheckpointPart
from hpcps.records.display import ProgressDisplay
from hpcps.records.files import record_file
from hpcps.records.provenance import kernels, machine, of_all, provenance, provenance_of, source_state
from hpcps.records.status import SweepProgress
from hpcps.records.trace.clocks import Clocks
from hpcps.records.trace.tracer import Tracer
from hpcps.records.writer import RecordWriter, elapsed_in, last_attempt
from hpcps.roles.events import Role
from hpcps.roles.resources import Resources
from hpcps.spec.members import members_of
from hpcps.transport.backoff import Backoff
from hpcps.transport.process_group import DeclaredLostError, LostError, ProcessGroup

_Writer = TypeVar("_Writer", bound=RecordWriter)

_End = Literal["done", "suspended", "failed"]

_OTHERS_REPORT = 0.5
"""Seconds between a failure and the end of the process, at which MPI ends all others: the end of another process may be
the cause, and its guard reports it."""


def nothing() -> None:
    """Write no report."""


def collective_check(group: ProcessGroup, problem: str, report: Callable[[], None] = nothing) -> bool:
    """Exchange the problems of all processes; return whether there are none.

    The leader prints each problem once. The first process with a problem writes its report.

    Args:
        group: the process group.
        problem: the problem of this process; empty if it has none.
        report: writes a report of the problem.
    """
    problems = group.collect(problem)
    affected = [rank for rank, text in enumerate(problems) if text]
    if group.rank in affected[:1]:
        report()
    if affected and group.leads:
        lines = dict.fromkeys(line for text in problems for line in text.splitlines())
        print("\n".join(f"hpcps: {line}" for line in lines), file=sys.stderr, flush=True)
    # No process exits before the message is printed: the launcher kills the job at the first exit.
    group.barrier()
    if affected and group.rank != affected[0]:
        # The launcher ends this process when that one ends. If this one ended first, its guard would report it.
        time.sleep(_OTHERS_REPORT)
    return not affected


@dataclass(frozen=True)
class _Services:
    """What a process uses in all runs of its launch.

    Attributes:
        stop: once this file exists, the run stops at its next checkpoint and no further run starts.
        group: the process group.
        devices: chooses where the buffers of a run are.
        tracking: lets trackers follow the records.
        clocks: the clocks of the other processes; None without a trace.
        display: shows the progress of a launch that no `hpcps run` supervises; None in most processes.
        evaluations: the process that evaluates for an evaluator; None in the others.
        supervised: whether `hpcps run` has started the launch: it starts another one with another number of workers,
            and moves checkpoints from memory to the disk at the end.
    """

    stop: StopFile
    group: ProcessGroup
    devices: DeviceBuffers
    tracking: TrackingProcess
    clocks: Clocks | None = None
    display: ProgressDisplay | None = None
    evaluations: EvaluationProcess | None = None
    supervised: bool = False


class _Beginning(NamedTuple):
    """From where a role begins: the number of the attempt, and its part of a checkpoint; None at the start of a run."""

    attempt: int
    part: CheckpointPart | None


class Stopped(BaseException):
    """A signal asked the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__(f"signal {number}")
        self.number = number


def say(who: object, error: HpcpsError) -> None:
    """Print an error that ends this process; if another one is lost, also the line that `hpcps run` looks for."""
    lost = death_line(str(error.peer), error.host, f"is lost: {error.why}") if isinstance(error, LostError) else ""
    # One write: all processes may print at the same time, and `print` writes the line end separately.
    sys.stderr.write(f"hpcps: {who} on {socket.gethostname()}: {error}\n{lost}")


def execute(plan: Plan, role: str, stop: StopFile, group: ProcessGroup, *, mps: bool = False) -> int:
    """Verify the rank, role and host of this process and execute its role in every run; return the exit status.

    Args:
        plan: the role of every rank, and the runs.
        role: the role that the configfile gives this process; empty if the configfile leaves it to the plan.
        stop: once this file exists, the run stops at its next checkpoint and no further run starts.
        group: the process group.
        mps: whether this process uses its GPU through MPS.

    Raises:
        DeclaredLostError: the others go on without this process.
    """
    _on_stop(stop.listener(plan, _stop))
    os.register_at_fork(after_in_child=_forget_stops)
    try:
        if group.incarnation:
            status = _take_place(plan, stop, group, mps)
        else:
            status = _execute_runs(plan, role, stop, group, mps)
        if status == 0:
            group.leave()
        return status
    except Stopped as stopped:
        return 128 + stopped.number
    except DeclaredLostError:
        raise
    except HpcpsError as error:
        say(plan.world[group.rank], error)
        return 1
    finally:
        # The process is ending: further signals have no effect.
        _on_stop(_ignore)


def _execute_runs(plan: Plan, role: str, stop: StopFile, group: ProcessGroup, mps: bool) -> int:
    host = socket.gethostname()
    if not collective_check(group, "\n".join(problems(plan, group.rank, group.size, role, host))):
        return 2
    # Once for all runs, because setting up the clocks takes time and the clocks do not change.
    me = plan.world[group.rank]
    clocks = Clocks(group, Peer(me.role, me.index)) if plan.trace else None
    display = _progress(plan) if plan.progress and me == _coordinator(plan) else None
    devices = DeviceBuffers(plan, group)
    with (
        EvaluationProcess() if me.role == EVALUATOR.role else nullcontext() as evaluations,
        TrackingProcess() as tracking,
    ):
        services = _Services(stop, group, devices, tracking, clocks, display, evaluations, not plan.progress)
        for planned in plan.runs:
            if group.share(stop.requested()):
                if group.leads:
                    print("hpcps: stopped; start it again to go on", flush=True)
                    stop.clear()
                break
            context = ProcessContext(planned, plan.world, group.rank, host, mps=mps)
            try:
                ended = _execute_run(context, services)
                if ended == "failed":
                    return 1
                # Processes that have replaced others have no further run, and none is asked for after the last one.
                if ended == "suspended" and planned is not plan.runs[-1] and not group.share(stop.requested()):
                    break  # it goes on in another launch, with another number of workers
            except LostError as error:
                context.report(None, "exchange", error)
                raise
    return 0


def _take_place(plan: Plan, stop: StopFile, group: ProcessGroup, mps: bool) -> int:
    """Execute the role of a lost process, in the run of its launch, from where a combiner says."""
    if not group.joins_in_time():
        return 0
    host, number = socket.gethostname(), group.incarnation
    context = ProcessContext(plan.runs[0], plan.world, group.rank, host, mps=mps, incarnation=number)
    peer = context.peer
    assert peer is not None, "the run has it, and has lost it"
    devices = DeviceBuffers(plan, group)
    buffers = devices.choose(context.run)
    with (
        EvaluationProcess() if peer == EVALUATOR else nullcontext() as evaluations,
        TrackingProcess() as tracking,
        _tracked(tracking, context),
    ):
        try:
            if evaluations is not None:
                evaluations.load(context)
            with _confined():
                resources = Resources(private, private, private, context.threads, evaluations)
                role = make_role(context.run, peer, resources, 0 if context.seat.stands_by else number)
            take_over_residual(role, context.directory, context.run)
            decides = record_file(context.directory.path, str(SERVER_0))
            attempt = max(1, last_attempt(decides))
            lines = lines_before(context.directory, context.run, peer, attempt)
            part = CheckpointPart(State(), lines, elapsed_in(decides))
        except Exception as error:
            context.report(None, "start", error)
            raise RunError(context.failed(None, "start", error)) from error
        supervised = not plan.progress
        services = _Services(stop, group, devices, tracking, evaluations=evaluations, supervised=supervised)
        driver = _perform(role, context, services, _Beginning(attempt, part), buffers)
        if driver is None:
            return 1
        group.settle()
        return int(_end(context, driver, group, time.monotonic()) == "failed")


def _tracked(tracking: TrackingProcess, context: ProcessContext) -> AbstractContextManager[None]:
    """Have the trackers of the run follow its records during a context, in the process of the coordinator."""
    return tracking.of(context.run, context.directory) if _is_coordinator(context) else nullcontext()


def _coordinator(plan: Plan) -> Rank:
    """Return the process of the role that counts the epochs and evaluates; see `Roster.coordinator`."""
    first = {member.role: member for member in reversed(plan.world)}
    return first.get("validator") or first["worker"]


def _progress(plan: Plan) -> ProgressDisplay:
    """Return the display of a launch that no `hpcps run` supervises, such as an `mpirun` typed by hand."""
    followed = SweepProgress([Path(run.directory) for run in plan.runs])
    display = ProgressDisplay(followed, sys.stdout, [(run.label, run.spec["run"]) for run in plan.runs])
    display.say(f"hpcps: {len(followed)} run{'s' * (len(followed) > 1)} to execute")
    return display


def _execute_run(context: ProcessContext, services: _Services) -> _End:
    """Execute one run to its end, or to a checkpoint if it shall stop; return how it ended."""
    group, evaluations = services.group, services.evaluations
    role, problem, report = None, "", nothing
    peers = () if context.peer is None else (context.peer,)
    resume = Resume(context.directory, context.run, peers)
    buffers = services.devices.choose(context.run)
    group.exchange(buffers.link)
    try:
        if group.leads:
            _prepare(context, group)
            if not services.supervised:
                context.directory.checkpoints.leave_memory()
        if buffers.refusal:
            raise RunError(buffers.refusal)
        if context.active:
            on_host = group.allocate if context.run.transport.reads_in_place else private
            if evaluations is not None:
                evaluations.load(context)
            allocate, local = buffers.allocate or on_host, buffers.allocate or private
            resources = Resources(allocate, local, on_host, context.threads, evaluations)
            with _confined():
                assert context.peer is not None, "it is active"
                role = make_role(context.run, context.peer, resources)
    except Exception as error:
        problem = message_of(error) if isinstance(error, HpcpsError) else context.failed(None, "start", error)
        report = partial(context.report, None, "start", error)
    if not collective_check(group, problem, report):
        return "failed"
    loaded = [text for text in group.collect(json.dumps(kernels())) if text]  # the roles have loaded the libraries
    if group.leads:
        context.directory.extend_provenance({"kernels": of_all(map(json.loads, loaded))})
    position = resume.find(partial(collective_check, group), group.share)
    if reason := resume.refusal(position):
        collective_check(group, reason)
        return "failed"
    part = next(iter(resume.parts.values()), None)
    earlier = group.collect(f"{resume.last_attempt()} {part.elapsed if part else 0.0}")
    attempts, times = zip(*(text.split() for text in earlier if text), strict=True)
    attempt, elapsed = 1 + max(map(int, attempts)), max(map(float, times))
    if position >= 0 and not collective_check(group, restore_role(role, part)):
        return "failed"
    if position >= 0 and group.leads:
        where = ", which is in memory" if context.directory.checkpoints.in_memory(position) else ""
        print(f"hpcps: {context.planned.label} goes on from its checkpoint at {position}{where}", flush=True)
    if group.leads:
        context.directory.checkpoints.forget_after(position)
    began = time.monotonic() - elapsed
    driver = None
    with _tracked(services.tracking, context):
        with tracing(context, services.clocks) as tracer:
            group.begin()
            if role is not None:
                driver = _perform(role, context, services, _Beginning(attempt, part), buffers, tracer)
                if driver is None:
                    return "failed"
            # Messages in transit, such as the last update of an asynchronous worker, must not reach the next run.
            group.settle()
            compare(services.clocks, tracer)
        ended = _end(context, driver, group, began)
    if services.display and ended == "done":
        services.display.finish(context.planned.run_id)
    return ended


def _end(context: ProcessContext, driver: RoleDriver | None, group: ProcessGroup, began: float) -> _End:
    """Mark the run as done if all its files are there, unless its roles have ended at a checkpoint.

    Args:
        context: the context of this process.
        driver: the driver of its role; None without a role.
        group: the process group.
        began: when the run began, on the monotonic clock.
    """
    ends = [text.split() for text in group.collect(f"{driver.end} {context.peer}" if driver and driver.end else "")]
    if any(end[:1] == ["suspended"] for end in ends):
        return "suspended"
    finished = {end[1] for end in ends if end}
    problem, report = "", nothing
    if group.leads:
        try:
            names = (name for name in context.everyone if name in finished)  # the others were lost
            context.directory.finish(time.monotonic() - began, names)
        except HpcpsError as error:
            problem, report = context.failed(None, "finish", error), partial(context.report, None, "finish", error)
    return "done" if collective_check(group, problem, report) else "failed"


def _perform(
    role: Role,
    context: ProcessContext,
    services: _Services,
    beginning: _Beginning,
    buffers: Buffers,
    tracer: Tracer | None = None,
) -> RoleDriver | None:
    """Execute the role from start to end; return its driver, or None if it failed."""
    me, group, evaluations, driver = context.me, services.group, services.evaluations, None
    try:
        observer = _observer(context, resumed=beginning.part is not None)
        with (
            ExitStack() as stack,
            Background(elsewhere=lambda: evaluations.cpu if evaluations else 0.0) as background,
        ):

            def open_record(kind: type[_Writer]) -> _Writer:
                record = kind(
                    context.directory.path,
                    context.run.id,
                    *role.peer,
                    context.host,
                    part=beginning.part,
                    attempt=beginning.attempt,
                    on_line=services.display.update_seldom if services.display else None,
                )
                stack.callback(record.close)
                return record

            def begin(record: RecordWriter) -> None:
                memory = group.in_memory() if context.run.transport.reads_in_place else []
                record.write(
                    "start",
                    pid=evaluations.pid if evaluations else os.getpid(),
                    rank=me.rank,
                    shared_memory=[str(peer) for peer in memory],
                    **buffers.fields(),
                    partition=context.run.transport.partition,
                    **role_facts(context.run, role),
                    gpu=gpu_of(me, os.environ),
                    mps=context.mps and role.device != "cpu",
                    **({"incarnation": group.incarnation} if group.incarnation else {}),
                    cpu_model=machine()["cpu"],
                )

            elapsed = beginning.part.elapsed if beginning.part else 0.0
            driver = make_driver(
                context.seat,
                role,
                group.transport,
                RecordFile(context.host, time.monotonic, elapsed, open_record, begin),
                context.directory,
                Resources(threads=context.threads),
                stopwatch=Stopwatch(cpu=background.foreground_cpu, alone=True),
                tracer=tracer,
                background=background,
                stop=services.stop.requested,
                resize=lambda: services.supervised and context.directory.resize_requested is not None,
                keep=context.run.checkpoint.keep,
                observer=observer,
                ordered=arrival_decides(context.run),
            )
            try:
                with _confined():
                    drive(driver, context.run.transport.timeout, group.backoff(), group.is_needed)
            except DeclaredLostError:
                driver.kill()
                raise
            except Stopped:
                driver.give_up("stopped")
                raise
            except (Exception, SystemExit) as error:
                driver.give_up("failed", error)
                raise
    except DeclaredLostError:
        raise
    except (Exception, SystemExit) as error:  # a plugin may call sys.exit
        round, phase = (driver.round, driver.phase) if driver else (role.round, "start")
        sys.stderr.write(f"hpcps: {context.failed(round, phase, error)}\n")
        context.report(round, phase, error)
        time.sleep(_OTHERS_REPORT)
        return None
    return driver


def _observer(context: ProcessContext, *, resumed: bool) -> Observer | None:
    """Return what calls the callbacks of the run, in the process of the coordinator."""
    if not context.run.callbacks or not _is_coordinator(context):
        return None
    from hpcps.execution.reporter import Reporter

    reporter = Reporter(context.run, context.planned.label, alone=False)
    if resumed:
        reporter.resume(context.directory)
    return reporter


def _is_coordinator(context: ProcessContext) -> bool:
    """Return whether this process has the role that counts the epochs and evaluates."""
    return context.peer == Roster.of(context.run).coordinator


def _prepare(context: ProcessContext, group: ProcessGroup) -> None:
    """Create the folder of the run, with its spec and its provenance.

    Raises:
        RunError: it cannot be written, or the run was resized after the plan was written.
    """
    directory = context.directory
    if not directory.restarts and members_of(directory.spec) != members_of(context.planned.spec):
        raise RunError(f"{directory.path} was resized after this launch was written: write it again")
    # First, so that later failures are reported separately from those of an earlier attempt.
    directory.create(context.planned.spec)
    directory.check_writable()
    code = source_state(Path(__file__).parent)
    facts = provenance(sys.argv, code) | provenance_of(context.planned.spec) | {**group.facts()}
    directory.write_provenance(facts, code.uncommitted)


def drive(driver: RoleDriver, timeout: float, backoff: Backoff, is_needed: Callable[[], bool] = lambda: True) -> None:
    """Step the driver until its role is done; back off between events.

    Args:
        driver: the driver.
        timeout: seconds.
        backoff: waits.
        is_needed: returns whether the others may still need the role; else it ends before its first round.

    Raises:
        RunError: nothing has arrived for `timeout` seconds.
    """
    last_event, recorded = time.monotonic(), False
    while not driver.finished:
        if not driver.round and not is_needed():
            driver.kill()
            return
        if driver.step():
            backoff.reset()
            last_event, recorded = time.monotonic(), False
            continue
        now, pause = time.monotonic(), math.inf
        if driver.resumes is not None:
            last_event, pause = now, max(driver.resumes - now, 0.0)  # a pause is not a wait for another role
        waited = now - last_event
        if waited > timeout and driver.limited:
            names = ", ".join(map(str, driver.waiting_for)) or "a message"
            raise RunError(
                f"{driver.peer} waited {timeout:g} s in round {driver.round} for {names}; see its record, "
                "or raise transport.timeout if a round really takes that long"
            )
        if waited > timeout / 2 and driver.limited and not recorded:
            # Any waiting process may reach its timeout first: the records of all show which process hangs.
            driver.record_wait()
            recorded = True
        backoff.wait(pause)


@contextmanager
def _confined() -> Iterator[None]:
    """End a process that a plugin has forked in this context, which would go on as the role of its parent."""
    process, status = os.getpid(), 0
    try:
        yield
    except BaseException as error:
        if os.getpid() == process:
            raise
        if isinstance(error, SystemExit):
            status = error.code if isinstance(error.code, int) else bool(error.code)
        else:
            sys.excepthook(type(error), error, error.__traceback__)
            status = 1
    if os.getpid() != process:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _forget_stops() -> None:
    """Let a signal end a process that this one has forked: it does not ask the launch to stop."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)


def _on_stop(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, handler)


def _stop(number: int) -> None:
    # A launcher forwards a signal that its process group receives too: ignore the second one.
    _on_stop(_ignore)
    raise Stopped(number)


def _ignore(number: int, frame: FrameType | None) -> None:
    """Ignore the signal; not SIG_IGN, because Python prints an error for a signal that arrives just before that."""
