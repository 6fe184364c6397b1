"""Which aggregator combines what, with equal and with unequal shares; results have the same bits with all of them."""

from collections import Counter

import numpy as np
import pytest
from members import Members

from hpcps.protocol.messages import Peer
from hpcps.rules import Krum, Median
from hpcps.session.buckets import partition
from hpcps.session.reduction import table_of
from hpcps.session.sharding import Sharding
from hpcps.session.tensors import Declaration

WORLD = [Peer("worker", 0), Peer("worker", 1), Peer("worker", 2), Peer("server", 0), Peer("server", 1)]
MIXED = (1, 1, 1, 4, 4)
"""The shares of three hosts of workers and two of servers, see `optimal_shares`."""


def sharding(weights):
    return Sharding(dict(zip(WORLD, weights, strict=True)))


def test_equal_shares_go_round():
    even = Sharding.evenly(WORLD)
    assert even.aggregators == (Peer("server", 0), Peer("server", 1))
    assert Sharding.evenly(WORLD[:3]).aggregators == tuple(WORLD[:3])
    for parts in (1, 2, 5):
        for bucket in range(7):
            wanted = [(Peer("server", (bucket + k) % 2), 1) for k in range(parts)]
            assert even.deal(bucket, parts) == wanted


@pytest.mark.parametrize("weights", [MIXED, (0, 2, 1, 7, 0), (5, 5, 5, 1, 1)])
def test_turns_are_in_the_ratio_of_the_shares(weights):
    total, turns, dealt = sum(weights), sharding(weights), Counter()
    for turn in range(3 * total):
        ((aggregator, _),) = turns.deal(turn, 1)
        dealt[aggregator] += 1
        for peer, weight in zip(WORLD, weights, strict=True):
            assert abs(dealt[peer] - (turn + 1) * weight / total) <= 1
    assert [dealt[peer] for peer in WORLD] == [3 * weight for weight in weights]
    # Processes that ask in another order get the same answers.
    later = sharding(weights)
    assert [later.deal(turn, 1) for turn in reversed(range(total))][::-1] == [
        turns.deal(turn, 1) for turn in range(total)
    ]


@pytest.mark.parametrize("weights", [MIXED, (0, 1, 2, 0, 3), (1, 1, 1, 1, 1)])
@pytest.mark.parametrize("shared_memory", [False, True])
@pytest.mark.parametrize("size", [17_001, 1_000_003, 5_000_000])
def test_each_aggregator_has_its_share_of_a_large_tensor(weights, shared_memory, size):
    members, most = Members(3, 2, shared_memory=shared_memory, weights=weights), partition(3, shared_memory)
    for first in range(3):  # they begin at different aggregators
        tensor = members.workers[0].declare(Declaration(f"{first}", "float32", ((size,),)))
        bounds = [part.bounds for part in tensor.parts]
        assert [stop for _, stop in bounds[:-1]] == [start for start, _ in bounds[1:]]
        assert (bounds[0][0], bounds[-1][1]) == (0, size)
        assert all(4 * part.elements <= most + 64 for part in tensor.parts)
        if shared_memory and len(set(weights)) == 1:
            continue  # a part that is smaller than a partition takes longer than it saves
        held = Counter()
        for part in tensor.parts:
            held[part.aggregator] += part.elements
        for peer, weight in zip(WORLD, weights, strict=True):
            rounding = 16 * len(tensor.parts) / 5 + 16
            assert held[peer] == pytest.approx(size * weight / sum(weights), abs=rounding)


@pytest.mark.parametrize("weights", [MIXED, (1, 0, 0, 2, 0)])
@pytest.mark.parametrize("reduction", ["sum", "mean", "max", table_of(Median()), table_of(Krum(f=0))])
def test_results_have_the_bits_of_a_session_without_servers(weights, reduction):
    random = np.random.default_rng(0)
    mixed, alone = Members(3, 2, weights=weights), Members(3)
    for size in (1, 10_000, 17_001, 400_003):
        arrays = [random.standard_normal(size).astype(np.float32) for _ in range(3)]
        results = [members.combine(arrays, reduction, name=f"{size}") for members in (mixed, alone)]
        for mine, others in zip(*results, strict=True):
            np.testing.assert_array_equal(mine.view(np.int32), others.view(np.int32))
