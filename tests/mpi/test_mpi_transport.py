"""Messages between real MPI ranks; run by `make mpi` with four of them."""

import time

import numpy as np
import pytest
from mpi4py import MPI

from hpcps.protocol.envelope import Delivered, Envelope
from hpcps.protocol.messages import Credit, Peer, Statistics
from hpcps.protocol.received import Malformed
from hpcps.transport.mpi.transport import MpiTransport, await_request
from hpcps.transport.process_group import LostError

PEERS = [Peer("worker", 0), Peer("worker", 1), Peer("validator", 0), Peer("server", 0)]
pytestmark = pytest.mark.mpi(min_size=4)


@pytest.fixture
def world():
    communicator = MPI.COMM_WORLD.Dup()
    transport = MpiTransport(communicator, {peer: rank for rank, peer in enumerate(PEERS)})
    yield communicator, transport, PEERS[communicator.Get_rank()]
    transport.settle()
    communicator.Free()


def next_arrival(transport, seconds=20.0):
    until = time.monotonic() + seconds
    while (arrival := transport.receive()) is None:
        assert time.monotonic() < until, "nothing came"
    return arrival


def test_a_collective_operation_ends_when_another_process_is_lost(world):
    """Without a supervisor, as under a launcher by hand, nothing else ends it."""
    communicator, _, _ = world

    def lose():
        raise LostError(PEERS[1], "n2", "it was stopped")

    request = communicator.Irecv([bytearray(1), MPI.BYTE], communicator.Get_rank(), 77)  # nobody sends it
    with pytest.raises(LostError, match="worker-1 on n2 is lost: it was stopped"):
        await_request(request, lose)
    request.Cancel()
    request.Wait()


@pytest.mark.parametrize("payload_bytes", [None, 8, 7])
def test_foreign_bytes_are_malformed_and_do_not_disturb_what_follows(world, payload_bytes):
    communicator, transport, me = world
    if me == PEERS[1]:
        tag = 1 if payload_bytes is None else 2
        communicator.Send([b"not a header of ours", MPI.BYTE], 3, tag)
        if payload_bytes is not None:
            communicator.Send([bytes(payload_bytes), MPI.BYTE], 3, 3)
        transport.send(PEERS[3], Envelope(me, "run", Credit(round=1, partitions=1)))
    if me == PEERS[3]:
        first = next_arrival(transport)
        assert isinstance(first, Malformed)
        assert first.source == PEERS[1]
        second = next_arrival(transport)
        assert isinstance(second, Delivered)
        assert isinstance(second.envelope.message, Credit)


def test_a_payload_of_another_size_than_announced_is_malformed(world):
    communicator, transport, me = world
    if me == PEERS[0]:
        header = Envelope(me, "run", Statistics(round=0, values=np.zeros(5, np.float32))).header
        communicator.Send([header, MPI.BYTE], 3, 2)
        communicator.Send([np.zeros(6, np.float32), MPI.FLOAT], 3, 3)
    if me == PEERS[3]:
        arrival = next_arrival(transport)
        assert isinstance(arrival, Malformed)
        assert "20 bytes, 24 were received" in arrival.reason


def test_what_is_sent_alone_does_not_overtake_a_payload(world):
    _, transport, me = world
    if me == PEERS[0]:
        for number in range(0, 60, 2):
            payload = np.zeros(200_000 if number % 4 else 3, np.float32)
            transport.send(PEERS[3], Envelope(me, "run", Statistics(round=number, values=payload)))
            transport.send(PEERS[3], Envelope(me, "run", Credit(round=number + 1, partitions=1)))
    if me == PEERS[3]:
        time.sleep(0.2)  # let several wait: the choice between them is what is tested
        assert [next_arrival(transport).envelope.message.round for _ in range(60)] == list(range(60))
