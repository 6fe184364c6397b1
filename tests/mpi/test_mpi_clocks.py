"""Clocks of several hosts, compared between real MPI ranks; run by `make mpi` with four of them."""

import time

import pytest
from mpi4py import MPI

from hpcps.protocol.messages import Peer
from hpcps.records.trace.clocks import SHARED, Clocks, Offset
from hpcps.transport.mpi.process_group import MpiProcessGroup

PEERS = [Peer("worker", 0), Peer("worker", 1), Peer("validator", 0), Peer("server", 0)]
pytestmark = pytest.mark.mpi(min_size=4)


@pytest.fixture
def group():
    communicator = MPI.COMM_WORLD.Dup()
    group = MpiProcessGroup(communicator, {peer: rank for rank, peer in enumerate(PEERS)})
    yield group
    group.settle()
    communicator.Free()


def compare(group, ahead, host):
    """Compare clocks, as if this rank's were so many seconds ahead, and of that host."""
    clocks = Clocks(group, PEERS[group.rank], clock=lambda: time.perf_counter() + ahead, identity=lambda: host)
    return clocks.compare()


def test_one_host_has_one_clock(group):
    if group.rank < 4:
        assert compare(group, 0.0, "a") == SHARED


def test_the_clocks_of_other_hosts_are_found_out(group):
    """Ranks 1 and 3 share a host, rank 2 has another one."""
    ahead, host = [(0.0, "a"), (1000.0, "b"), (-5.0, "c"), (1000.0, "b")][group.rank]
    found = compare(group, ahead, host)
    texts = group.collect(f"{found.seconds!r} {found.error!r}")
    offsets = [Offset(*map(float, text.split())) for text in texts]
    assert offsets[0] == SHARED
    assert offsets[1] == offsets[3]
    for offset, expected in zip(offsets, (0.0, -1000.0, 5.0, -1000.0), strict=True):
        assert abs(offset.seconds - expected) <= offset.error
        assert offset.error < 0.05
