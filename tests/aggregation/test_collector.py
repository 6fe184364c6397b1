"""What several senders have sent: slots are complete when all have sent them, and rows come out as they went in."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcps.aggregation.collector import Collector, span, spans
from hpcps.protocol.messages import Peer

SENDERS = [Peer("worker", k) for k in range(3)]


def cut(row, begin, first, stop):
    return row[first - begin : stop - begin]


@given(st.sets(st.integers(0, 80)))
def test_spans_are_the_runs_of_a_set(slots):
    found = [*spans(sum(1 << slot for slot in slots))]
    assert [slot for first, stop in found for slot in range(first, stop)] == sorted(slots)
    assert all(stop not in slots for _, stop in found)
    assert sum(span(*each) for each in found) == sum(1 << slot for slot in slots)


@given(st.data())
def test_each_slot_comes_out_once_all_have_sent_it_whatever_their_spans(data):
    """Every sender cuts 0 to 9 into spans of its own, in an order of its own, some without a row."""
    collector = Collector(SENDERS, cut)
    events = []
    for sender in SENDERS:
        edges = sorted({0, 10, *data.draw(st.lists(st.integers(1, 9), max_size=5))})
        events += [(sender, *each, data.draw(st.booleans())) for each in pairwise(edges)]
    sent = {slot: {} for slot in range(10)}
    combined = []
    for sender, first, stop, gives in data.draw(st.permutations(events)):
        row = [(sender.index, slot) for slot in range(first, stop)] if gives else None
        for slot in range(first, stop):
            sent[slot][sender] = gives
        for low, high in collector.put(sender, first, stop, row):
            assert all(len(sent[slot]) == len(SENDERS) for slot in range(low, high))
            while low < high:
                end, rows = collector.take(low, high)
                assert low < end <= high
                for slot in range(low, end):
                    assert [*rows] == [each for each in SENDERS if sent[slot][each]]
                    assert all(row[slot - low] == (each.index, slot) for each, row in rows.items())
                combined += range(low, end)
                low = end
    assert sorted(combined) == [*range(10)]
    assert not collector.begun


def test_it_knows_who_is_waited_for():
    collector = Collector(SENDERS)
    assert not collector.begun
    assert [*collector.put(SENDERS[1], 0, 1, "row")] == []
    assert collector.begun
    assert collector.has(SENDERS[1], 0)
    assert not collector.has(SENDERS[0], 0)
    assert collector.waiting_for(0) == [SENDERS[0], SENDERS[2]]
    assert (collector.awaited_of(SENDERS[0]), collector.awaited_of(SENDERS[1])) == (1, 0)


def test_a_slot_is_sent_again_only_after_it_was_taken():
    collector = Collector(SENDERS[:1])
    assert [*collector.put(SENDERS[0], 2, 3, "row")] == [(2, 3)]
    with pytest.raises(ValueError, match="slots 2 to 2 of worker-0 are here already"):
        collector.put(SENDERS[0], 2, 3, "row")
    assert collector.take(2, 3) == (3, {SENDERS[0]: "row"})
    assert [*collector.put(SENDERS[0], 2, 3, "again")] == [(2, 3)]


def test_rows_of_some_senders_are_taken_and_those_of_others_remain():
    """As in a round that does not wait for late workers."""
    collector = Collector(SENDERS)
    collector.put(SENDERS[0], 0, 1, "early")
    collector.put(SENDERS[2], 0, 1, "late")
    assert collector.take(0, 1, SENDERS[:1]) == (1, {SENDERS[0]: "early"})
    assert collector.has(SENDERS[2], 0)
    assert collector.take(0, 1, ()) == (1, {})
    collector.forget(SENDERS[2])
    assert not collector.begun


def test_rows_are_not_copied():
    collector, row = Collector(SENDERS[:1], cut), np.arange(4)
    collector.put(SENDERS[0], 0, 4, row)
    assert np.shares_memory(collector.take(1, 3)[1][SENDERS[0]], row)
