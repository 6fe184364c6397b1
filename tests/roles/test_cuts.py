"""Every element of the model is in one partition, of the right size, and everyone agrees on which."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcps.numerics.layout import Layout
from hpcps.protocol.partitioning import Partition, Partitioning

layouts = st.lists(st.integers(1, 300), min_size=1, max_size=9).map(
    lambda sizes: Layout.of([(f"b{b}", (size,)) for b, size in enumerate(sizes)])
)
sizes = st.none() | st.integers(16, 400)


def covered(size, slices):
    count = np.zeros(size, np.int64)
    for start, stop in slices:
        count[start:stop] += 1
    return count


@given(layouts, st.integers(1, 4), st.integers(0, 2), sizes, st.booleans())
def test_each_element_is_in_one_partition_of_each_kind(layout, servers, validators, size, whole):
    shards = layout.bounds(servers, whole=whole)
    cuts = Partitioning(layout, shards, validators, size, whole=whole)
    assert (covered(layout.size, [s for shard in cuts.shards for s in shard]) == 1).all()
    for shard, bounds in zip(cuts.shards, shards, strict=True):
        assert shard, "every server hears of every round"
        assert all(bounds[0] <= start <= stop <= bounds[1] for start, stop in shard)
    if validators:
        assert all((covered(layout.size, slices) == 1).all() for slices in cuts.updates)
    else:
        assert cuts.updates == cuts.shards


@given(layouts, st.integers(1, 4), st.integers(0, 2), st.integers(16, 400), st.booleans())
def test_partitions_are_no_larger_than_asked_for_and_cut_large_blocks_only(layout, servers, validators, size, whole):
    bounds = layout.bounds(servers, whole=whole and not validators)
    cuts = Partitioning(layout, bounds, validators, size, whole=whole)
    starts = set(layout.offsets.tolist())
    shards = {start for start, _ in bounds}
    for start, stop in {s for slices in cuts.updates for s in slices}:
        block = layout.blocks[layout.first_in(min(start, layout.size - 1))]
        if whole:
            assert {start, stop} <= starts
            assert stop - start <= size or (start, stop) == (block.offset, block.stop)
        else:
            assert stop - start <= size
            assert start in starts or start in shards or block.size > size


@given(layouts, st.integers(1, 4), st.integers(1, 2), sizes)
def test_a_validators_partitions_come_to_their_servers_in_order(layout, servers, validators, size):
    cuts = Partitioning(layout, layout.bounds(servers), validators, size, whole=False)
    sent = [[] for _ in range(servers)]
    for number, (start, stop) in enumerate(cuts.updates[0]):
        pieces = cuts.pieces(number)
        assert sum(high - low for _, _, (low, high) in pieces) == stop - start
        for server, piece, bounds in pieces:
            assert piece == len(sent[server])
            sent[server].append(bounds)
    assert tuple(map(tuple, sent)) == cuts.shards


@given(layouts, st.integers(1, 4), st.integers(0, 2), sizes)
def test_the_first_layers_of_each_shard_travel_first(layout, servers, validators, size):
    """So rounds need no priorities; see docs/explanation/architecture.md."""
    shards = layout.bounds(servers)
    cuts = Partitioning(layout, shards, validators, size, whole=False)
    for slices in cuts.updates:
        for low, high in shards:
            of_shard = [start for start, _ in slices if low <= start < high]
            assert of_shard == sorted(of_shard)


def test_neighbours_go_to_different_servers():
    layout = Layout.of([("w", (640,))])
    cuts = Partitioning(layout, layout.bounds(2), 1, 80, whole=False)
    owners = [start >= 320 for start, _ in cuts.updates[0]]
    assert owners == [False, True] * 4


def test_without_a_size_there_is_one_message_for_everyone():
    layout = Layout.of([("a", (100,)), ("b", (28,))])
    bounds = layout.bounds(2)
    assert Partitioning(layout, bounds, 0, whole=False).updates == (((0, 64),), ((64, 128),))
    cuts = Partitioning(layout, bounds, 1, whole=True)
    assert cuts.updates == (((0, 128),),)
    assert cuts.pieces(0) == [(0, 0, (0, 64)), (1, 0, (64, 128))]


def test_whole_shards_are_as_equal_as_the_blocks_allow():
    layout = Layout.of([("a", (100,)), ("b", (28,)), ("c", (40,))])
    assert layout.bounds(2, whole=True) == ((0, 100), (100, 168))
    assert layout.bounds(4, whole=True) == ((0, 0), (0, 100), (100, 128), (128, 168))


def test_a_partition_knows_its_blocks():
    layout = Layout.of([("a", (10,)), ("b", (10,)), ("c", (10,))])
    partition = Partition.of(layout, (5, 20))
    assert (partition.columns, partition.blocks) == (slice(5, 20), slice(0, 2))
    assert [(block.name, block.size) for block in partition.layout.blocks] == [("a", 5), ("b", 10)]
