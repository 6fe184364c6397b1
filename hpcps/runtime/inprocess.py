"""A whole run in one process: every role takes its turn, in a fixed order."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

from hpcps.errors import HpcpsError, RunError
from hpcps.messages import Peer
from hpcps.records.checkpoint import Part
from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import RecordWriter
from hpcps.runtime.casting import make_role, memory_facts, spread
from hpcps.runtime.node import Node
from hpcps.runtime.resume import Resume, take_back
from hpcps.simulation.config import NoSimulation
from hpcps.simulation.driver import Simulation
from hpcps.spec.schema import Run
from hpcps.trace.tracer import Tracer, names_of
from hpcps.transport.inproc import Exchange


def run_in_process(
    run: Run, run_id: str, directory: RunDirectory, stop: Callable[[], bool] = lambda: False, *, trace: bool = False
) -> bool:
    """Run all roles here, deterministically, and write their records and the model into the run's folder.

    Args:
        run: the run.
        run_id: its id.
        directory: its folder; if there is a checkpoint in it, the run goes on from there.
        stop: says whether the run shall stop at its next checkpoint.
        trace: whether to note what each role does when.

    Returns:
        Whether it is done; else it stopped at a checkpoint.

    Raises:
        RunError: a role failed, or all wait for one another in a circle.
        HpcpsError: nothing could be started: a data file is missing, say.
    """
    topology = run.topology
    peers = [Peer("worker", k) for k in range(topology.workers)]
    peers += [Peer("validator", v) for v in range(topology.validators)]
    peers += [Peer("server", s) for s in range(topology.servers)]
    simulation = None if isinstance(run.simulation, NoSimulation) else Simulation(run)
    run = run if isinstance(run.simulation, NoSimulation) else spread(run, run.simulation.hosts)
    turns = VirtualClock()
    exchange, clock = (simulation.exchange, simulation.clock) if simulation else (Exchange(), turns)
    parts = _parts(run, run_id, directory, peers)
    ticks = simulation.clock if simulation else time.monotonic
    session = time.time_ns()
    began = ticks()
    with ExitStack() as stack:
        nodes = []
        for peer in peers:
            part = parts.get(peer)
            host = simulation.host(peer) if simulation else socket.gethostname()
            record = RecordWriter(directory.path, run_id, peer.role, peer.index, host, ticks, part=part)
            stack.enter_context(record)
            try:
                role = make_role(run, run_id, peer)
                if part:
                    problem = take_back(role, part)
                    if problem:
                        raise RunError(problem)
            except HpcpsError as error:
                directory.fail(peer.role, peer.index, socket.gethostname(), None, "start", error)
                raise
            tracer = None
            if trace:
                timing = simulation.clock if simulation else time.perf_counter
                names = names_of(peer, topology.validators)
                tracer = Tracer(
                    directory.path, run_id, peer, host, session, clock=timing, virtual=bool(simulation), names=names
                )
                stack.enter_context(tracer)
            modelled = {"clock": "virtual"} if simulation else {}
            modelled |= memory_facts(run, peer.role, role.device)
            record.write("start", transport="inproc", threads=run.train.threads, device=role.device, **modelled)
            nodes.append(
                Node(
                    role,
                    exchange.endpoint(peer),
                    record,
                    directory,
                    slowdown=run.heterogeneity.slowdown(peer.role, peer.index),
                    clock=clock,
                    stopwatch=simulation.stopwatch(peer) if simulation else None,
                    tracer=tracer,
                    sideline=simulation.sideline(peer) if simulation else None,
                    stop=stop,
                    keep=run.checkpoint.keep,
                )
            )
        try:
            if simulation:
                simulation.play(nodes, partial(reporting, directory=directory))
                check_finished(nodes)
            else:
                take_turns(nodes, directory, turns)
        except KeyboardInterrupt:
            for node in nodes:
                if not node.finished:
                    node.give_up("stopped")
            raise
    if any(node.suspended for node in nodes):
        return False
    directory.finish(ticks() - began + max((part.elapsed for part in parts.values()), default=0.0))
    return True


def _parts(run: Run, run_id: str, directory: RunDirectory, peers: Sequence[Peer]) -> dict[Peer, Part]:
    """Return what each role goes on from; nothing if the run begins anew."""
    searches = {peer: Resume(directory, run, run_id) for peer in peers}
    moment = searches[peers[0]].before(None)
    while moment >= 0:
        problems = [problem for peer, resume in searches.items() if (problem := resume.take(moment, peer))]
        if not problems:
            break
        print(f"hpcps: {problems[0]}", file=sys.stderr, flush=True)
        moment = searches[peers[0]].before(moment)
    directory.checkpoints.forget_after(moment)
    return {peer: resume.part for peer, resume in searches.items() if resume.part} if moment >= 0 else {}


class VirtualClock:
    """Time in which computing takes none: it passes only where everyone waits, up to the end of the first pause."""

    def __init__(self) -> None:
        self._now = 0.0

    def __call__(self) -> float:
        """Return the time in seconds."""
        return self._now

    def advance(self, to: float) -> None:
        """Let time pass."""
        self._now = max(self._now, to)


def take_turns(nodes: Sequence[Node], directory: RunDirectory, clock: VirtualClock) -> None:
    """Step all nodes, each in its turn, until they are done.

    Raises:
        RunError: a role failed, or all wait for one another in a circle.
    """
    while left := [node for node in nodes if not node.finished]:
        moved = False
        for node in left:
            with reporting(node, directory):
                moved |= node.step()
        pauses = [until for node in left if (until := node.resumes) is not None]
        if not moved and pauses:
            clock.advance(min(pauses))
        elif not moved:
            check_finished(nodes)


@contextmanager
def reporting(node: Node, directory: RunDirectory) -> Iterator[None]:
    """Run a node's code; if it fails, say so in its record and in the run's folder.

    Raises:
        RunError: it failed.
    """
    try:
        yield
    except Exception as error:
        node.give_up("failed", error)
        host = socket.gethostname()
        with suppress(OSError):
            directory.fail(node.peer.role, node.peer.index, host, node.round, node.phase, error)
        raise RunError(f"{node.peer} on {host} failed in round {node.round} ({node.phase}): {error}") from error


def check_finished(nodes: Sequence[Node]) -> None:
    """Make sure that all are done, where none can go on.

    Raises:
        RunError: some wait, for one another in a circle.
    """
    waits = [f"{node.peer} for {', '.join(map(str, node.waiting_for))}" for node in nodes if not node.finished]
    if waits:
        raise RunError(f"nobody can go on; waiting: {'; '.join(waits)}")
