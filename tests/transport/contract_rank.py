"""One process of a group over any transport: it checks what every transport promises, and prints what it saw."""

import json
import os
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest

from hpcps.errors import RunError
from hpcps.execution.process import drive
from hpcps.execution.role_driver import RoleDriver
from hpcps.protocol.envelope import Delivered, Envelope
from hpcps.protocol.messages import Absent, Credit, Flag, ModelReply, Peer, Statistics
from hpcps.protocol.received import Reduced
from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import RecordWriter
from hpcps.registry import using
from hpcps.registry.components import Registry
from hpcps.registry.plugins import load, read_plugin
from hpcps.roles.events import SetDeadline
from hpcps.transport import LaunchedProcess
from hpcps.transport.base import CollectiveTransport
from hpcps.transport.rendezvous import Rendezvous

WORLD = (Peer("worker", 0), Peer("validator", 0), Peer("server", 0))
A, B, S = WORLD
SIZES = (0, 1, 1000, 300_000, 3_000_000)


class Waiting:
    """A role that waits for another one, in vain."""

    keeps_checkpoints, device, round, run_id = False, "cpu", 3, "run"

    def __init__(self, peer, other):
        self.peer, self._other = peer, other

    def handle(self, event):
        yield SetDeadline((self._other,))


def await_event(group, seconds=60.0):
    backoff, until = group.backoff(), time.monotonic() + seconds
    while (event := group.transport.receive()) is None:
        assert time.monotonic() < until, "nothing came"
        backoff.wait()
    return event


def collective_operations(group, me):
    assert group.collect(f"I am {group.rank} ü") == [f"I am {k} ü" for k in range(group.size)]
    assert group.share(40 + group.rank) == 40
    group.barrier()


def all_is_sent(group, most, seconds=60.0):
    """The bytes that are not sent are at most those of the messages, and none after a while."""
    backoff, until = group.backoff(), time.monotonic() + seconds
    assert group.transport.unsent <= most + 10_000
    while group.transport.unsent:
        assert time.monotonic() < until, "it is not sent"
        assert group.transport.receive() is None
        backoff.wait()


def payloads(group, me):
    """They arrive whole, in order, with their headers; all of them are valid until they are answered."""
    mask = np.array([True, False, True])
    sent = [
        ModelReply(
            request=k,
            shard=1,
            version=7,
            position=9,
            epoch=2,
            flags=Flag.LAST,
            applied=mask,
            values=np.arange(size, dtype="f4") + k,
        )
        for k, size in enumerate(SIZES)
    ]
    if me in (A, B):
        payloads = [group.allocate(message.values.size) for message in sent]
        for message, payload in zip(sent, payloads, strict=True):
            payload[:] = message.values
            group.transport.send(S, Envelope(me, "run", replace(message, values=payload)))
            group.transport.send(S, Envelope(me, "run", Credit(round=message.request, partitions=1)))
        all_is_sent(group, sum(payload.nbytes for payload in payloads))
    if me == S:
        held = {A: [], B: []}
        for _ in range(4 * len(SIZES)):
            event = await_event(group)
            assert isinstance(event, Delivered), event
            assert (event.source, "run") == (event.envelope.sender, event.envelope.run)
            held[event.source].append(event.envelope.message)
        for came in held.values():
            assert [type(m) for m in came] == [ModelReply, Credit] * len(SIZES)
            assert [m.round for m in came[1::2]] == [*range(len(SIZES))]
            for message, expected in zip(came[::2], sent, strict=True):
                for name in ("request", "shard", "version", "position", "epoch", "flags"):
                    assert getattr(message, name) == getattr(expected, name), name
                assert (message.applied == mask).all()
                np.testing.assert_array_equal(message.values, expected.values)
                assert message.values.flags.aligned
    group.barrier()
    traffic = group.transport.traffic
    return traffic.sent, traffic.received


def a_settled_run(group, me):
    """Messages that no role has received do not reach the next run."""
    if me in (A, B):
        for size in (0, 10, 200_000):
            group.transport.send(S, Envelope(me, "first", Statistics(round=0, values=np.zeros(size, np.float32))))
    group.settle()
    assert group.transport.receive() is None
    group.barrier()
    if me == A:
        group.transport.send(S, Envelope(me, "second", Absent(round=0, flags=Flag.NONE)))
    if me == S:
        assert await_event(group).envelope.run == "second"
    group.settle()


def deadline(group, me):
    """A role that waits too long says for whom."""
    with TemporaryDirectory() as folder, RecordWriter(Path(folder), "run", me.role, me.index, "here") as record:
        driver = RoleDriver(Waiting(me, S), group.transport, record, RunDirectory(Path(folder)))
        began = time.monotonic()
        with pytest.raises(RunError, match=f"{me} waited 0.3 s in round 3 for server-0"):
            drive(driver, 0.3, group.backoff())
        assert time.monotonic() - began < 30


def offers(group, me, offered):
    """It offers what it declares, and nothing else."""
    transport = group.transport
    assert isinstance(transport, CollectiveTransport) == ("allreduce" in offered)
    if "allreduce" in offered:
        transport.join(WORLD)
        for operation, expected in (("sum", 6), ("max", 3)):
            values = np.full(1000, 1 + WORLD.index(me), np.float32)
            transport.reduce(values, operation)
            event = await_event(group)
            assert isinstance(event, Reduced)
            assert (event.values == expected).all()
    assert bool(group.in_memory()) == ("shared_memory" in offered)
    values = group.allocate(1000)
    values[:] = 1
    if me == A:
        transport.send(S, Envelope(A, "run", Statistics(round=0, values=values)))
    held = await_event(group).envelope.message.values if me == S else None
    group.barrier()
    if me == A and "shared_memory" in offered:
        values[:] = 2
    group.barrier()
    if held is not None:
        assert (held == (2 if "shared_memory" in offered else 1)).all()
    group.settle()
    group.exchange(None)


def check(group, me, offered):
    """Check everything; return the bytes that were sent and received."""
    collective_operations(group, me)
    sent, received = payloads(group, me)
    a_settled_run(group, me)
    if me in WORLD:  # a transport may need a further process
        deadline(group, me)
    group.barrier()
    offers(group, me, offered)
    return {"role": str(me), "sent": sent, "received": received}


def main(kind, plugin, rendezvous):
    registry = Registry([load(read_plugin(Path(plugin)), Path(plugin))] if plugin else [])
    with using(registry), ExitStack() as stack:
        transport = registry.of("transports")[kind](timeout=60.0)
        further = (Peer(transport.further_role, 0),) if transport.further_role else ()
        world = (*WORLD, *further)
        rank = int(os.environ["HPCPS_RANK"]) if "mpi" not in transport.offers else None
        process = LaunchedProcess(rank, world, ("localhost",) * len(world), "launch", Rendezvous(Path(rendezvous)))
        group = stack.enter_context(transport.group(process))
        seen = check(group, world[group.rank], transport.offers)
        group.leave()
        sys.stdout.write(f"{json.dumps(seen)}\n")  # in one write: mpirun may put others between two


if __name__ == "__main__":
    main(*sys.argv[1:4])
