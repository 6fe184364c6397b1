"""A whole run in one process: every role takes its turn, in a fixed order."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress

from hpcps.errors import RunError
from hpcps.messages import Peer
from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import RecordWriter
from hpcps.runtime.casting import make_role
from hpcps.runtime.node import Node
from hpcps.spec.schema import Run
from hpcps.transport.inproc import Exchange


def run_in_process(run: Run, run_id: str, directory: RunDirectory) -> None:
    """Run all roles here, deterministically, and write their records and the model into the run's folder.

    Raises:
        RunError: a role failed, or all wait for one another in a circle.
        HpcpsError: nothing could be started: a data file is missing, say.
    """
    began = time.monotonic()
    topology = run.topology
    peers = [Peer("worker", k) for k in range(topology.workers)]
    peers += [Peer("validator", v) for v in range(topology.validators)]
    peers += [Peer("server", s) for s in range(topology.servers)]
    exchange, clock = Exchange(), VirtualClock()
    with ExitStack() as stack:
        nodes = []
        for peer in peers:
            record = RecordWriter(directory.path, run_id, peer.role, peer.index, socket.gethostname())
            stack.enter_context(record)
            record.write("start", transport="inproc", threads=run.train.threads)
            role = make_role(run, run_id, peer)
            nodes.append(Node(role, exchange.endpoint(peer), record, directory, clock=clock))
        try:
            take_turns(nodes, directory, clock)
        except KeyboardInterrupt:
            for node in nodes:
                if not node.finished:
                    node.give_up("stopped")
            raise
    directory.finish(time.monotonic() - began)


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
            try:
                moved |= node.step()
            except Exception as error:
                node.give_up("failed", error)
                host = socket.gethostname()
                with suppress(OSError):
                    directory.fail(node.peer.role, node.peer.index, host, node.round, node.phase, error)
                raise RunError(f"{node.peer} on {host} failed in round {node.round} ({node.phase}): {error}") from error
        pauses = [until for node in left if (until := node.resumes) is not None]
        if not moved and pauses:
            clock.advance(min(pauses))
        elif not moved:
            waits = [f"{node.peer} for {', '.join(map(str, node.waiting_for))}" for node in left]
            raise RunError(f"nobody can go on; waiting: {'; '.join(waits)}")
