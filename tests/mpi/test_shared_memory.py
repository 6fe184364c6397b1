"""Payloads that are read where they lie, by the ranks of one host."""

import resource

import numpy as np
import pytest
from said import say, wait_for

from hpcps.protocol.messages import Peer
from hpcps.protocol.received import Malformed
from hpcps.transport.mpi.process_group import MpiProcessGroup
from hpcps.transport.shared_memory import SegmentAddress

pytestmark = pytest.mark.mpi(min_size=4)


@pytest.fixture(scope="module")
def group():
    from mpi4py import MPI

    return MpiProcessGroup(MPI.COMM_WORLD, {Peer("worker", rank): rank for rank in range(MPI.COMM_WORLD.Get_size())})


def test_what_is_settled_is_used_again(group):
    first = group.allocate(5000)
    group.settle()
    assert np.shares_memory(first, group.allocate(4000))
    group.settle()


def test_shared_and_sent_payloads_keep_their_order(group):
    transport, rank, size = group.transport, group.rank, group.size
    to = Peer("worker", (rank + 1) % size)
    shared = group.allocate(300_000)
    shared[:] = 7
    for round in range(20):
        payload = shared[: 1000 * round] if round % 3 == 0 else np.full(20_000 * (round % 4), 7, np.float32)
        transport.send(to, say(rank, payload, round))
    held = [wait_for(transport) for _ in range(20)]
    assert [event.envelope.message.round for event in held] == list(range(20))
    # All payloads are valid together, however they came.
    assert all((event.envelope.message.values == 7).all() for event in held)
    group.settle()


def test_more_is_said_than_a_pipe_holds(group):
    """Who does not listen for a while gets everything later, payloads that travel by themselves in their places."""
    transport, rank, size = group.transport, group.rank, group.size
    count = 2000
    for round in range(count):
        payload = np.full(100, round, np.float32) if round % 100 == 0 else None
        transport.send(Peer("worker", (rank + 1) % size), say(rank, payload, round))
    assert transport._blocked, "the pipe was large enough for this"
    group.barrier()
    for round in range(count):
        message = wait_for(transport).envelope.message
        assert message.round == round
        assert (message.values.size == 0) == (round % 100 != 0)
        assert (message.values == round).all()
    group.settle()


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (SegmentAddress(0, 0, 4000), "cannot be read"),
        (SegmentAddress(999_999, 0, 4), "cannot be read"),
        (None, "it refers to bytes"),
        (SegmentAddress(-1, 2, 4), "it refers to bytes"),
    ],
    ids=["a file that is no memory", "no file", "after the end", "not aligned"],
)
def test_a_wrong_place_is_malformed(group, place, said):
    transport, rank, size = group.transport, group.rank, group.size
    real = transport.neighbours.arena.locate(group.allocate(1000))
    if place is None:
        place = SegmentAddress(real.segment, 4, 1 << 40)
    elif place.segment == -1:
        place = place._replace(segment=real.segment)
    right = (rank + 1) % size
    transport.neighbours.send(right, bytes([4]) + place.pack() + say(rank).header)
    transport._sent_to[right] += 1
    before = transport.traffic.received
    event = wait_for(transport)
    assert isinstance(event, Malformed)
    assert transport.traffic.received - before < 1000, "what it only claims to be is not counted"
    assert said in event.reason
    group.settle()


def test_where_none_is_left_it_is_sent_and_said(group, capsys):
    """The limit of open files, as small segments reach it first."""
    transport, rank, size = group.transport, group.rank, group.size
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(3, limits[0]), limits[1]))
    try:
        mine, more = group.allocate(1 << 21), group.allocate(1 << 21)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert capsys.readouterr().err.count("got no shared memory (8.4 MB: Too many open files)") == 1
    assert group.in_memory() == []
    mine[:], more[:] = rank, rank + 10
    for payload in (mine, more):
        transport.send(Peer("worker", (rank + 1) % size), say(rank, payload))
    left = (rank - 1) % size
    assert [set(wait_for(transport).envelope.message.values.tolist()) for _ in range(2)] == [{left}, {left + 10}]
    group.settle()
    assert len(group.in_memory()) == size - 1
