"""Shared cores, links and networks, against schedules worked out by hand."""

import pytest

from hpcps.execution.simulation.sharing import EventQueue, HostCores, Links, Network
from hpcps.protocol.messages import Peer
from hpcps.spec.simulation import Link


def ends(event_queue, begin, schedule):
    """Begin things at their moments (name, moment, *what); return when each is over."""
    over = {}

    def done(name):
        return lambda: over.setdefault(name, event_queue())

    for name, moment, *what in schedule:
        event_queue.at(moment, lambda name=name, what=what: begin(*what, done(name)))
    while event_queue.step():
        pass
    return over


def on_cores(cores, *schedule, polling=0, demand=0.0, speed=1.0):
    event_queue = EventQueue()
    host = HostCores(event_queue, cores, demand, speed)
    if polling:
        host.poll(polling)
    return ends(event_queue, host.begin, schedule)


def test_who_comes_later_slows_who_is_there_and_who_ends_first_speeds_up_the_other():
    # alone to 1 (1 of 3 done), at half speed to 3 (b done, 2 of 3), alone again to 4
    assert on_cores(1, ("a", 0.0, 3.0), ("b", 1.0, 1.0)) == {"b": 3.0, "a": 4.0}


def test_a_task_that_is_broken_off_gives_its_core_away():
    event_queue, over = EventQueue(), []
    host = HostCores(event_queue, 1)
    job = host.begin(5.0, lambda: over.append("cancelled"))
    host.begin(5.0, lambda: over.append(event_queue()))
    event_queue.at(2.0, lambda: over.append(host.cancel(job)))
    while event_queue.step():
        pass
    assert over == [4.0, 6.0], "4 of 5 s were left at 2; the other task has 1 of 5 then, and the core alone"


def test_polling_processes_take_their_part_but_no_more_than_an_even_share():
    assert on_cores(1, ("a", 0.0, 1.0), polling=2, demand=0.1) == pytest.approx({"a": 1 / 0.8})
    assert on_cores(2, ("a", 0.0, 1.0), polling=2, demand=0.1) == {"a": 1.0}, "there is a core left for them"
    # each of the three wants a third at least
    assert on_cores(1, ("a", 0.0, 1.0), polling=2, demand=0.5) == pytest.approx({"a": 3.0})


def test_a_link_is_shared_by_two_transfers():
    event_queue = EventQueue()
    links = Links(event_queue, {"l": 100.0, "m": 30.0})

    def begin(size, uses, done):
        links.begin(size, done, uses)

    found = ends(event_queue, begin, [("a", 0.0, 100, ["l"]), ("b", 0.5, 100, ["l"]), ("c", 0.0, 30, ["m"])])
    # a: 50 alone, then 50 at half the bandwidth to 1.5; b: 50 by then, then 50 alone
    assert found == {"c": 1.0, "a": 1.5, "b": 2.0}


def test_a_transfer_through_two_links_gets_the_lesser_share():
    event_queue = EventQueue()
    links = Links(event_queue, {"out": 100.0, "in": 100.0})

    def begin(size, uses, done):
        links.begin(size, done, uses)

    found = ends(event_queue, begin, [("a", 0.0, 100, ["out", "in"]), ("b", 0.0, 50, ["in"]), ("c", 0.0, 50, ["out"])])
    assert found == {"b": 1.0, "c": 1.0, "a": 1.5}


A, B, C = Peer("worker", 0), Peer("worker", 1), Peer("server", 0)


def through(homes, local, remote, *schedule):
    event_queue = EventQueue()
    network = Network(event_queue, homes.values(), local, remote)

    def carry(source, to, size, done):
        network.carry((source, to), (homes[source], homes[to]), size, done)

    return ends(event_queue, carry, schedule)


def test_latency_and_bandwidth_add_up():
    slow = Link(latency=0.25, bandwidth=100.0)
    homes = {A: 0, B: 0, C: 1}
    assert through(homes, slow, Link(), ("m", 1.0, A, B, 50)) == {"m": 1.75}
    assert through(homes, slow, Link(), ("m", 1.0, A, C, 50)) == {"m": 1.0}, "between hosts it is another link"
    assert through(homes, Link(), slow, ("m", 1.0, A, C, 50)) == {"m": 1.75}
    assert through(homes, Link(latency=0.5), Link(), ("m", 0.0, A, B, 10**9)) == {"m": 0.5}


def test_a_receivers_way_in_is_shared_and_latency_is_not():
    link = Link(latency=0.5, bandwidth=100.0)
    found = through({A: 0, B: 1, C: 2}, Link(), link, ("a", 0.0, A, C, 100), ("b", 0.0, B, C, 100))
    assert found == {"a": 2.5, "b": 2.5}
    found = through({A: 0, B: 1, C: 2}, Link(), link, ("a", 0.0, A, C, 100), ("b", 0.0, C, B, 100))
    assert found == {"a": 1.5, "b": 1.5}, "out and in are two ways"


def test_messages_of_one_sender_to_one_receiver_do_not_overtake():
    link = Link(bandwidth=100.0)
    found = through(
        {A: 0, C: 1}, Link(), link, ("large", 0.0, A, C, 100), ("small", 0.0, A, C, 1), ("none", 0.0, A, C, 0)
    )
    assert list(found) == ["large", "small", "none"]
    assert list(found.values()) == pytest.approx([1.0, 1.01, 1.01])
    # those of two senders share, and the small one is through first
    found = through({A: 0, B: 0, C: 1}, Link(), link, ("large", 0.0, A, C, 100), ("small", 0.0, B, C, 1))
    assert found == pytest.approx({"small": 0.02, "large": 1.01})
