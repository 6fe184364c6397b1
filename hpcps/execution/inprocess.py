"""Execute a whole run in one process: the roles take turns in a fixed order."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TypeVar

from hpcps.errors import HpcpsError, RunError
from hpcps.execution.observer import Observer
from hpcps.execution.resume import Resume, restore_role, take_over_residual
from hpcps.execution.role_driver import RoleDriver
from hpcps.execution.role_factory import arrival_decides, make_role, replicas_of, role_facts, spread
from hpcps.execution.simulation.driver import Simulation
from hpcps.execution.simulation.sharing import EventQueue
from hpcps.execution.standby.seats import RecordFile, Seat, make_driver
from hpcps.numerics.state import State
from hpcps.protocol.messages import Peer
from hpcps.protocol.roster import Roster
from hpcps.records.checkpoint import CheckpointPart
from hpcps.records.failure import failure_text
from hpcps.records.files import Prefix, prefix_of, record_file
from hpcps.records.provenance import kernels
from hpcps.records.run_directory import RunDirectory
from hpcps.records.trace.tracer import Tracer, names_of
from hpcps.records.writer import RecordWriter
from hpcps.roles.resources import Resources
from hpcps.spec.schema import Run
from hpcps.spec.simulation import NoSimulation
from hpcps.transport.inproc import Exchange

_Writer = TypeVar("_Writer", bound=RecordWriter)


def run_in_process(
    run: Run,
    directory: RunDirectory,
    stop: Callable[[], bool] = lambda: False,
    *,
    resize: Callable[[], bool] = lambda: False,
    trace: bool = False,
    observer: Observer | None = None,
) -> bool:
    """Run all roles here, deterministically, and write their records and the model into the run's folder.

    Args:
        run: the run, with its id.
        directory: its folder; if it holds a checkpoint, the run resumes from there.
        stop: returns whether the run shall stop at its next checkpoint.
        resize: returns whether it shall stop where an epoch ends, to go on with another number of workers.
        trace: whether to trace each role.
        observer: follows all roles.

    Returns:
        Whether it is done; else it stopped at a checkpoint.

    Raises:
        RunError: a role failed, or the roles are in a deadlock.
        HpcpsError: the run could not start: for example, a data file is missing.
    """
    roster = Roster.of(run)
    peers, standbys = roster.everyone(), roster.standbys(run)
    simulation = None if isinstance(run.simulation, NoSimulation) else Simulation(run)
    run = run if isinstance(run.simulation, NoSimulation) else spread(run, run.simulation.hosts)
    exchange, clock = (simulation.exchange, simulation.clock) if simulation else (Exchange(), EventQueue())
    resume = Resume(directory, run, peers)
    position = resume.find(_check)
    if reason := resume.refusal(position):
        raise RunError(reason)
    directory.checkpoints.forget_after(position)
    parts, attempt = resume.parts, 1 + resume.last_attempt()
    ticks = simulation.clock if simulation else time.monotonic
    session = time.time_ns()
    began = ticks()
    resources = Resources(replicas=replicas_of(run))
    with ExitStack() as stack:

        def driver_of(peer: Peer, part: CheckpointPart | None, incarnation: int = 0) -> RoleDriver:
            """Return a driver for a role that resumes, begins, or takes the place of a lost one; or for a standby.

            The standby that replaces another one of a server gets the state of the server.
            """
            seat, server = Seat.ALONE, Peer("server", peer.index)
            if peer in standbys:
                seat = Seat.NEW_STANDBY if incarnation else Seat.STANDBY
            elif peer == server and standbys:
                seat = Seat.SERVER
            role_of = server if seat.stands_by else peer
            host = simulation.host(peer) if simulation else socket.gethostname()

            def open_record(kind: type[_Writer]) -> _Writer:
                record = kind(directory.path, run.id, *role_of, host, ticks, part=part, attempt=attempt)
                stack.callback(record.close)
                return record

            def begin(record: RecordWriter) -> None:
                facts = role_facts(run, role) | ({"clock": "virtual"} if simulation else {})
                record.write("start", **facts, **({"incarnation": incarnation} if incarnation else {}))

            try:
                role = make_role(run, role_of, resources, 0 if seat.stands_by else incarnation)
                if part and not incarnation and (problem := restore_role(role, part)):
                    raise RunError(problem)
                take_over_residual(role, directory, run)
            except HpcpsError as error:
                directory.fail(peer.role, peer.index, socket.gethostname(), None, "start", error)
                raise
            tracer = None
            if trace and not seat.stands_by:
                timing = simulation.clock if simulation else time.perf_counter
                names = names_of(peer, run.topology.validators)
                tracer = Tracer(
                    directory.path, run.id, peer, host, session, clock=timing, virtual=bool(simulation), names=names
                )
                stack.enter_context(tracer)
            return make_driver(
                seat,
                role,
                exchange.standby(server) if seat.stands_by else exchange.endpoint(peer),
                RecordFile(host, ticks, part.elapsed if part else 0.0, open_record, begin),
                directory,
                resources,
                clock=clock,
                stopwatch=simulation.stopwatch(peer) if simulation else None,
                tracer=tracer,
                background=simulation.background(peer) if simulation else None,
                stop=stop,
                resize=resize,
                keep=run.checkpoint.keep,
                observer=observer,
                ordered=arrival_decides(run),
            )

        def replacement_of(peer: Peer, incarnation: int) -> RoleDriver:
            """Return the driver of the replacement of a lost process; all lines of its record stay valid."""
            lines = Prefix(0) if peer in standbys else prefix_of(record_file(directory.path, str(peer)))
            elapsed = ticks() - began + (parts[peer].elapsed if peer in parts else 0.0)
            return driver_of(peer, CheckpointPart(State(), lines, elapsed), incarnation)

        drivers = {peer: driver_of(peer, parts.get(peer)) for peer in peers}
        drivers |= {peer: driver_of(peer, parts.get(Peer("server", peer.index))) for peer in standbys}
        directory.extend_provenance({"kernels": kernels()})
        try:
            if simulation:
                simulation.execute(drivers, partial(reporting, directory=directory), replacement_of)
                check_finished(tuple(drivers.values()))
            else:
                take_turns(tuple(drivers.values()), directory, clock)
        except KeyboardInterrupt:
            for driver in drivers.values():
                if not driver.finished:
                    driver.give_up("stopped")
            raise
    if any(driver.suspended for driver in drivers.values()):
        return False
    took = ticks() - began + max((part.elapsed for part in parts.values()), default=0.0)
    directory.finish(took, (str(peer) for peer in peers if peer in drivers))
    return True


def _check(problem: str) -> bool:
    """Print the problem of a checkpoint; return whether there is none."""
    if problem:
        print(f"hpcps: {problem}", file=sys.stderr, flush=True)
    return not problem


def take_turns(drivers: Sequence[RoleDriver], directory: RunDirectory, clock: EventQueue) -> None:
    """Step all drivers in turn until they are done.

    The clock ignores computation: it advances only while all roles wait, to the end of the shortest pause.

    Raises:
        RunError: a role failed, or the roles are in a deadlock.
    """
    while left := [driver for driver in drivers if not driver.finished]:
        moved = False
        for driver in left:
            with reporting(driver, directory):
                moved |= driver.step()
        pauses = [until for driver in left if (until := driver.resumes) is not None]
        if not moved and pauses:
            clock.advance(min(pauses))
        elif not moved:
            check_finished(drivers)


@contextmanager
def reporting(driver: RoleDriver, directory: RunDirectory) -> Iterator[None]:
    """Run the code of a driver; write a failure to its record and to the run's folder.

    Raises:
        RunError: the code failed.
    """
    try:
        yield
    except (Exception, SystemExit) as error:  # a plugin may call sys.exit
        driver.give_up("failed", error)
        host = socket.gethostname()
        with suppress(OSError):
            directory.fail(driver.peer.role, driver.peer.index, host, driver.round, driver.phase, error)
        raise RunError(failure_text(driver.peer, host, driver.round, driver.phase, error)) from error


def check_finished(drivers: Sequence[RoleDriver]) -> None:
    """Check that all drivers are done when none of them can proceed.

    Raises:
        RunError: some roles still wait: they are in a deadlock.
    """
    waits = [
        f"{driver.peer} for {', '.join(map(str, driver.waiting_for))}" for driver in drivers if not driver.finished
    ]
    if waits:
        raise RunError(f"no role can proceed; waiting: {'; '.join(waits)}")
