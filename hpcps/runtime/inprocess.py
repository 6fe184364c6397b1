"""A whole run in one process: every role takes its turn, in a fixed order."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack

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
        RunError: if the roles wait for one another in a circle.
    """
    began = time.monotonic()
    topology = run.topology
    peers = [Peer("worker", k) for k in range(topology.workers)]
    peers += [Peer("validator", v) for v in range(topology.validators)]
    peers += [Peer("server", s) for s in range(topology.servers)]
    exchange = Exchange()
    with ExitStack() as stack:
        nodes = []
        for peer in peers:
            record = RecordWriter(directory.path, run_id, peer.role, peer.index, socket.gethostname())
            stack.enter_context(record)
            record.write("start", transport="inproc", threads=run.train.threads)
            nodes.append(Node(make_role(run, run_id, peer), exchange.endpoint(peer), record, directory))
        while not all(node.finished for node in nodes):
            moved = [node.step() for node in nodes if not node.finished]
            if not any(moved):
                waits = [
                    f"{node.peer} for {', '.join(map(str, node.waiting_for))}" for node in nodes if not node.finished
                ]
                raise RunError(f"nobody can go on; waiting: {'; '.join(waits)}")
    directory.finish(time.monotonic() - began)
