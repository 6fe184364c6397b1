"""Payloads in the memory of a device that works late (`late_device`), between real ranks of one host."""

import numpy as np
import pytest
from buffers.late_device import LateDevice
from said import say, wait_for

from hpcps.numerics.vectors import DeviceVector, on_host
from hpcps.protocol.envelope import Delivered
from hpcps.protocol.messages import Peer
from hpcps.transport.device import DeviceLink
from hpcps.transport.mpi.process_group import MpiProcessGroup

pytestmark = pytest.mark.mpi(min_size=4)


@pytest.fixture(scope="module")
def group():
    from mpi4py import MPI

    communicator = MPI.COMM_WORLD.Dup()
    yield MpiProcessGroup(communicator, {Peer("worker", rank): rank for rank in range(communicator.Get_size())})
    communicator.Free()


@pytest.fixture(params=["direct", "staged"])
def way(request, group):
    """Exchange the memory of a new device in one way, for all ranks."""
    direct = frozenset(range(group.size)) if request.param == "direct" else frozenset()
    group.exchange(DeviceLink(LateDevice(), direct))
    yield request.param
    group.settle()
    assert group.transport.link is None, "the next run says anew how memory is exchanged"


def test_payloads_arrive_complete_and_in_order(group, way):
    """Between others, of any size, without a wait of the sender; where they arrive depends on the way."""
    transport, rank, size = group.transport, group.rank, group.size
    device, right = transport.link.device, Peer("worker", (rank + 1) % size)
    mine = device.allocate(300_000)
    for round in range(12):
        count = (0, 10, 300_000)[round % 3]
        part = mine[:0] if round % 3 == 0 else device.allocate(count)
        part[:] = np.full(count, 100 * rank + round, np.float32)
        transport.send(right, say(rank, part, round))
        transport.send(right, say(rank, np.full(7, round, np.float32) if round % 2 else None, 100 + round))
    left, seen = (rank - 1) % size, []
    for _ in range(24):
        event = wait_for(transport)
        assert isinstance(event, Delivered)
        round = event.envelope.message.round
        seen.append(round)
        if round >= 100:
            assert on_host(event.envelope.message.values).tolist() == ([round - 100] * 7 if round % 2 else [])
            continue
        count = (0, 10, 300_000)[round % 3]
        values = event.envelope.message.values
        assert isinstance(values, DeviceVector) == (bool(count) and way != "staged")
        assert set(on_host(values).tolist()) == ({100 * left + round} if count else set())
    assert seen == [number for round in range(12) for number in (round, 100 + round)]


def test_what_was_received_may_be_used_late(group, way):
    """The work on a payload is asked for, and the buffer of the payload is received into again: nothing is mixed up."""
    transport, rank, size = group.transport, group.rank, group.size
    device, right, left = transport.link.device, Peer("worker", (rank + 1) % size), (rank - 1) % size
    kept = [device.allocate(5000) for _ in range(6)]
    for round, out in enumerate(kept):
        payload = device.allocate(5000)
        payload[:] = np.full(5000, 10 * rank + round, np.float32)
        transport.send(right, say(rank, payload, round))
        event = wait_for(transport)
        out[:] = event.envelope.message.values
        del event
    for round, out in enumerate(kept):
        assert set(on_host(out).tolist()) == {10 * left + round}
