"""Roles' messages over ps-lite nodes, in the threads of one process."""

import random
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from running_processes import within
from threads import Cluster

from hpcps.errors import InputError, RunError
from hpcps.inputs import parse_as
from hpcps.protocol.envelope import Delivered, Envelope
from hpcps.protocol.messages import Credit, Peer, Statistics
from hpcps.protocol.received import Malformed
from hpcps.protocol.roster import standby_of
from hpcps.transport.process_group import LaunchedProcess, LostError
from hpcps.transport.pslite.meta import SCHEDULER_ID, Command, Control, Meta, NodeRole, id_of
from hpcps.transport.pslite.process_group import JOINS, OVER, TEXT, Everyone, PsliteProcessGroup, Text, Texts
from hpcps.transport.pslite.transport import APP, MESSAGE
from hpcps.transport.rendezvous import Rendezvous

WORLD = [Peer("worker", 0), Peer("validator", 0), Peer("server", 0), Peer("scheduler", 0)]
ROLES = [NodeRole.WORKER, NodeRole.WORKER, NodeRole.SERVER, NodeRole.SCHEDULER]
A, B, S = WORLD[:3]
WITH_STANDBY = {"lost": frozenset({0, 1, 2}), "world": [A, standby_of(S), *WORLD[2:]]}
"""All may be lost, and the server has a standby in the place of the validator."""


class Company:
    """The process groups of all processes of a launch, each with a thread of its own."""

    def __init__(self, lost=frozenset(), world=WORLD, before=0, **options):
        """All join; `before` replacements of the server have been lost before."""
        cluster = Cluster(1, 2, **options)
        self.pool = ThreadPoolExecutor(len(world))

        def join(rank, incarnation=0):
            settings = cluster.settings(ROLES[rank])
            hosts, may_be_lost = ("here",) * len(world), {"replaceable": lost, "silence": 30.0, "leader": 1}
            process = LaunchedProcess(rank, tuple(world), hosts, "launch", Rendezvous(Path("unused")))
            process = replace(process, incarnation=incarnation, **(may_be_lost if lost else {}))
            return PsliteProcessGroup(settings, process, lambda me: None)

        self.join, self.everyone = join, self.all(lambda rank: join(rank, before * (world[rank] == S)))

    def all(self, job):
        """Have all do something at once; return what they return, by rank."""
        return [done.result(60) for done in [self.pool.submit(job, rank) for rank in range(len(ROLES))]]

    def end(self):
        for process_group in self.everyone:
            process_group.abandon()


@pytest.fixture
def company():
    companies = []

    def make(**options):
        companies.append(Company(**options))
        return companies[-1].everyone, companies[-1]

    yield make
    for each in companies:
        each.end()


def next_arrival(transport, seconds=30.0):
    until = time.monotonic() + seconds
    while (arrival := transport.receive()) is None:
        assert time.monotonic() < until, "nothing came"
        time.sleep(0.001)
    return arrival


def test_lost_messages_come_again_in_their_order(company):
    """Every sixth message is thrown away; what was sent after it must wait for it."""
    random.seed(3)
    everyone, group = company(resend=True, resend_timeout=0.03, resend_limit=100, drop_rate=16)
    for number in range(60):
        for sender, to in ((0, S), (1, S), (2, A)):
            payload = np.full(number % 7, number, np.float32)
            message = Statistics(round=number, values=payload)
            everyone[sender].transport.send(to, Envelope(WORLD[sender], "run", message))
    came = {A: [], B: [], S: []}
    for _ in range(120):
        arrival = next_arrival(everyone[2].transport)
        came[arrival.source].append(arrival.envelope.message.round)
    came[S] = [next_arrival(everyone[0].transport).envelope.message.round for _ in range(60)]
    assert came == {A: list(range(60)), B: list(range(60)), S: list(range(60))}
    assert sum(process_group._node.sender.resender.resent for process_group in everyone) > 10
    assert sum(process_group._node.sender.resender.duplicates for process_group in everyone) > 5
    group.all(lambda rank: everyone[rank].settle())


@pytest.mark.thorough
def test_messages_that_cannot_arrive_end_the_run(company):
    everyone, _ = company(resend=True, resend_timeout=0.02, resend_limit=3)
    everyone[2].abandon()
    everyone[0].transport.send(S, Envelope(A, "run", Credit(round=0, partitions=1)))
    with pytest.raises(RunError, match="messages to server-0 are not acknowledged"):
        next_arrival(everyone[0].transport)


def test_foreign_frames_are_counted_and_malformed_ones_told(company):
    everyone, _ = company()
    node, server = everyone[0]._node, everyone[2]
    target = id_of(NodeRole.SERVER, 0)

    def send(frames, head=MESSAGE, app=APP, body=bytes(12)):
        meta = Meta(head=head, body=body, request=True, app=app, customer=0, timestamp=node.timestamp())
        node.send(target, meta, frames)

    send([b"x"], app=0)
    send([b"x"], head=77)
    send([b"x"], head=TEXT)
    send([b"x"], body=b"seven b")
    send([b"no header of ours"])
    first = next_arrival(server.transport)
    assert isinstance(first, Malformed)
    assert first.source == A
    header = Envelope(A, "run", Credit(round=1, partitions=1)).header
    send([header], body=bytes(12))  # its number was there before
    wrong = {1: [header, bytes(7)], 2: [header, bytes(4), b""], 3: [header, bytes(8)], 4: []}
    for number, frames in wrong.items():
        send(frames, body=number.to_bytes(12, "little"))
        assert isinstance(next_arrival(server.transport), Malformed)
    send([header], body=(5).to_bytes(12, "little"))
    assert isinstance(next_arrival(server.transport), Delivered)
    assert server._node.dropped.counts == {"malformed": 1, "unexpected": 3, "foreign": 1}


def test_a_lost_process_is_told_and_its_replacement_takes_its_place(company):
    everyone, group = company(lost=frozenset({0}))
    group.all(lambda rank: everyone[rank].begin())
    everyone[0].transport.send(B, Envelope(A, "run", Credit(round=1, partitions=1)))
    assert next_arrival(everyone[1].transport).envelope.message.round == 1
    everyone[0].abandon()
    lost = next_arrival(everyone[1].transport)
    assert (lost.peer, lost.cause) == (A, "its connection has closed")
    # What is sent to it is for nobody; what is sent after the replacement is known arrives, in any number.
    everyone[1].transport.send(A, Envelope(B, "run", Credit(round=2, partitions=1)))
    new = group.join(0, incarnation=3)
    replaced = next_arrival(everyone[1].transport)
    assert (replaced.peer, replaced.incarnation, new.incarnation) == (A, 3, 3)
    assert new.joins_in_time()
    assert new.is_needed()
    everyone[1].transport.send(A, Envelope(B, "run", Credit(round=3, partitions=1)))
    new.transport.send(B, Envelope(A, "run", Credit(round=4, partitions=1)))
    first = next_arrival(new.transport)
    assert (first.envelope.message.round, first.skipped) == (3, 1), "one message went to its predecessor"
    everyone[1].transport.send(A, Envelope(B, "run", Credit(round=5, partitions=1)))
    assert next_arrival(new.transport).skipped is None
    assert next_arrival(everyone[1].transport).envelope.message.round == 4
    assert [next_arrival(everyone[2].transport).peer for _ in range(2)] == [A, A], "server 0 keeps the checkpoints"
    # All end the run together; others that have finished need no replacement that takes no part yet.
    ends = [group.pool.submit(everyone[rank].collect, str(rank)) for rank in (1, 2, 3)]
    within(30, lambda: not new.is_needed(), "the news that others have finished")
    assert new.collect("new") == ["new", "1", "2", "3"]
    assert all(end.result(30) == ["new", "1", "2", "3"] for end in ends)
    new.abandon()
    # Later ones come too late, and nobody waits for the lost.
    ends = [group.pool.submit(everyone[rank].collect, str(rank)) for rank in (1, 2, 3)]
    assert all(end.result(30) == ["", "1", "2", "3"] for end in ends)
    late = group.join(0, incarnation=4)
    assert not late.joins_in_time()
    late.abandon()


@pytest.mark.sample(1)
@pytest.mark.parametrize("announced", [True, False])
def test_nobody_counts_on_a_replacement_before_all_know_it(company, announced):
    """A server that hears of the replacement later than the others; or also later of the death."""
    everyone, group = company(lost=frozenset({0}))
    group.all(lambda rank: everyone[rank].begin())
    server = everyone[2]
    members, held = server._node._members, []
    take_list, announce = members.take_list, members.deaths.announce
    members.take_list = lambda sender, control: held.append((sender, control)) or ()
    if not announced:
        members.deaths.announce = lambda body: ()
    everyone[0].abandon()
    assert next_arrival(everyone[1].transport).peer == A
    joining = group.pool.submit(group.join, 0, 1)
    within(30, lambda: held, "the list at the server")
    time.sleep(0.5)
    assert not joining.done()
    assert everyone[1].transport.receive() is None, "the validator knows it, and is not told yet"
    members.take_list, members.deaths.announce = take_list, announce
    server._node.post(lambda: [server._observe(node) for node in take_list(*held[0])])
    new = joining.result(30)
    assert next_arrival(everyone[1].transport).incarnation == 1
    assert [type(next_arrival(server.transport)).__name__ for _ in range(2)] == ["Lost", "Replaced"]
    new.transport.send(S, Envelope(A, "run", Credit(round=2, partitions=1)))
    assert next_arrival(server.transport).envelope.message.round == 2
    server.transport.send(A, Envelope(S, "run", Credit(round=3, partitions=1)))
    assert next_arrival(new.transport).envelope.message.round == 3
    new.abandon()


def until_told(transport, told):
    """Return what a role is told until it is told this; of a loss, the number of the process may be any."""
    found = [next_arrival(transport)]
    while found[-1][:1] != told[1:2] or type(found[-1]).__name__ != told[0] or (told[2] and found[-1][1] != told[2]):
        found.append(next_arrival(transport))
    return found


def test_replacements_of_a_worker_and_of_its_validator_find_each_other(company):
    everyone, group = company(lost=frozenset({0, 1}))
    group.all(lambda rank: everyone[rank].begin())
    server = everyone[2].transport
    for rank in (1, 0):
        everyone[rank].abandon()
        until_told(server, ("Lost", WORLD[rank], 0))
    worker = group.join(0, incarnation=1)
    until_told(server, ("Replaced", A, 1))
    for number in (1, 2):  # the second one finds a worker that has been there for longer than its predecessor
        server.send(B, Envelope(S, "run", Credit(round=number, partitions=1)))
        validator = group.join(1, incarnation=number)
        until_told(server, ("Replaced", B, number))
        until_told(validator.transport, ("Replaced", A, 1))
        until_told(worker.transport, ("Replaced", B, number))
        worker.transport.send(B, Envelope(A, "run", Credit(round=number, partitions=1)))
        first = next_arrival(validator.transport)
        assert (first.source, first.envelope.message.round, first.skipped) == (A, number, number - 1)
        validator.transport.send(A, Envelope(B, "run", Credit(round=number, partitions=1)))
        assert next_arrival(worker.transport).envelope.message.round == number
        server.send(B, Envelope(S, "run", Credit(round=number, partitions=1)))
        assert next_arrival(validator.transport).skipped == 2 * number - 1
        validator.abandon()
        until_told(server, ("Lost", B, 0))
    worker.abandon()


@pytest.mark.parametrize("replaced", [False, True])
def test_nobody_counts_on_a_validator_before_the_workers_know_it(company, replaced):
    """A worker, or the replacement of one, that hears of the validator's replacement later than the others."""
    everyone, group = company(lost=frozenset({0, 1}))
    group.all(lambda rank: everyone[rank].begin())
    worker, server = everyone[0], everyone[2].transport
    if replaced:
        worker.abandon()
        until_told(server, ("Lost", A, 0))
        worker = group.join(0, incarnation=1)
        until_told(server, ("Replaced", A, 1))
    members, held = worker._node._members, []
    take_list = members.take_list
    members.take_list = lambda sender, control: held.append((sender, control)) or ()
    everyone[1].abandon()
    until_told(server, ("Lost", B, 0))
    joining = group.pool.submit(group.join, 1, 1)
    within(30, lambda: held, "the list at the worker")
    time.sleep(0.5)
    assert not joining.done()
    assert server.receive() is None, "the server knows it, and is not told yet"
    members.take_list = take_list
    worker._node.post(lambda: [worker._observe(node) for node in take_list(*held[0])])
    validator = joining.result(30)
    until_told(server, ("Replaced", B, 1))
    worker.transport.send(B, Envelope(A, "run", Credit(round=2, partitions=1)))
    if replaced:
        until_told(validator.transport, ("Replaced", A, 1))
    assert next_arrival(validator.transport).envelope.message.round == 2
    for each in (validator, worker):
        each.abandon()


def test_a_replacement_that_has_got_nothing_of_a_server_gets_it_of_the_second_standby(company):
    """Three messages went to its predecessor, and none to it before the standby is lost, too."""
    everyone, group = company(**WITH_STANDBY)
    group.all(lambda rank: everyone[rank].begin())
    server, standby = everyone[2].transport, everyone[1].transport
    for number in range(3):
        server.send(A, Envelope(S, "run", Credit(round=number, partitions=1)))
        standby.keep(A, Envelope(S, "run", Credit(round=number, partitions=1)))
    everyone[0].abandon()
    until_told(server, ("Lost", A, 0))
    worker = group.join(0, incarnation=1)
    until_told(standby, ("Replaced", A, 1))
    standby.forget(A)
    everyone[2].abandon()
    until_told(standby, ("Lost", S, 0))
    standby.take_over()
    second = group.join(2, incarnation=1)
    until_told(standby, ("Replaced", standby_of(S), 1))
    second.transport.begin({A: 3}, {}, {A: 1})
    everyone[1].abandon()
    until_told(second.transport, ("Lost", S, 0))
    second.transport.take_over()
    second.transport.send(A, Envelope(S, "run", Credit(round=3, partitions=1)))
    first = next_arrival(worker.transport)
    assert (first.source, first.envelope.message.round, first.skipped) == (S, 3, 3)
    for each in (worker, second):
        each.abandon()


def test_a_new_standby_that_takes_the_place_before_a_message_comes_gets_the_next_one(company):
    """The number of the message is the one that the server would have got."""
    everyone, group = company(**WITH_STANDBY)
    group.all(lambda rank: everyone[rank].begin())
    worker, server = everyone[0].transport, everyone[2].transport
    for number in range(3):
        worker.send(S, Envelope(A, "run", Credit(round=number, partitions=1)))
        assert next_arrival(server).envelope.message.round == number
    everyone[1].abandon()
    until_told(server, ("Lost", standby_of(S), 0))
    second = group.join(1, incarnation=1)
    until_told(server, ("Replaced", standby_of(S), 1))
    second.transport.begin({A: 0}, {}, {})
    everyone[2].abandon()
    until_told(second.transport, ("Lost", S, 0))
    second.transport.take_over()
    within(30, lambda: worker.acting(S) == second._node.id, "the news of the new server")
    worker.send(S, Envelope(A, "run", Credit(round=3, partitions=1)))
    arrived = next_arrival(second.transport)
    assert (arrived.source, arrived.envelope.message.round, arrived.skipped) == (A, 3, 3)
    second.abandon()


def test_a_server_begins_with_a_standby_that_another_replacement_found_when_it_joined(company):
    """The worker's replacement registers before that of the standby, and joins after it."""
    everyone, group = company(**WITH_STANDBY)
    group.all(lambda rank: everyone[rank].begin())
    server, scheduler = everyone[2].transport, everyone[3]
    add, held = scheduler._add, []
    scheduler._add = lambda node, sent: held.append((node, sent))
    joining = []
    for rank, lost in ((0, A), (1, standby_of(S))):
        everyone[rank].abandon()
        until_told(server, ("Lost", lost, 0))
        joining.append(group.pool.submit(group.join, rank, 1))
        within(30, lambda: len(held) == len(joining), "the question of the replacement")
    scheduler._add = add
    for node, sent in held:
        scheduler._node.post(lambda node=node, sent=sent: add(node, sent))
    news = [joined.result(30) for joined in joining]
    until_told(server, ("Replaced", standby_of(S), 1))
    for each in news:
        each.abandon()


def test_a_replacement_gets_what_a_new_server_sends_before_it_has_heard_of_it(company):
    """A validator may have heard of it earlier, and count on it; what is for its predecessor is dropped."""
    everyone, group = company(**WITH_STANDBY)
    group.all(lambda rank: everyone[rank].begin())
    standby = everyone[1].transport
    everyone[2].abandon()
    until_told(standby, ("Lost", S, 0))
    everyone[0].abandon()
    until_told(standby, ("Lost", A, 0))
    standby.take_over()
    standby.send(A, Envelope(S, "run", Credit(round=0, partitions=1)))
    worker = group.join(0, incarnation=1)
    until_told(standby, ("Replaced", A, 1))
    standby.send(A, Envelope(S, "run", Credit(round=1, partitions=1)))
    standby.forget(A)
    standby.send(A, Envelope(S, "run", Credit(round=2, partitions=1)))
    rounds = [next_arrival(worker.transport).envelope.message.round for _ in range(2)]
    assert rounds == [1, 2]
    worker.abandon()


def test_a_server_that_was_replaced_before_the_others_joined_is_told_of_its_standby(company):
    everyone, group = company(**WITH_STANDBY, before=2)
    group.all(lambda rank: everyone[rank].begin())
    assert everyone[2].incarnation == 0
    everyone[1].abandon()
    until_told(everyone[2].transport, ("Lost", standby_of(S), 0))


def test_a_standby_whose_server_is_lost_while_it_joins_is_told(company):
    """It cannot take the place, and says so; else all would wait for it."""
    everyone, group = company(**WITH_STANDBY)
    group.all(lambda rank: everyone[rank].begin())
    server, scheduler = everyone[2].transport, everyone[3]
    add, held = scheduler._add, []
    scheduler._add = lambda node, sent: held.append((node, sent))
    everyone[1].abandon()
    until_told(server, ("Lost", standby_of(S), 0))
    joining = group.pool.submit(group.join, 1, 1)
    within(30, lambda: held, "the question of the new standby")
    everyone[2].abandon()
    within(30, lambda: everyone[0].transport.acting(S) == id_of(NodeRole.WORKER, 1), "the news of the loss")
    scheduler._add = add
    scheduler._node.post(lambda: add(*held[0]))
    standby = joining.result(30)
    until_told(standby.transport, ("Lost", S, 0))
    standby.abandon()


def test_a_server_does_not_begin_with_a_standby_that_is_lost_before_all_send_to_it(company):
    """The last one to say that it does says so after the loss."""
    everyone, group = company(**WITH_STANDBY)
    group.all(lambda rank: everyone[rank].begin())
    server, seats = everyone[2].transport, everyone[2]._seats
    note, held = seats.note_doubled, []
    seats.note_doubled = lambda sender, body: held.append((sender, body)) or True
    everyone[1].abandon()
    until_told(server, ("Lost", standby_of(S), 0))
    standby = group.join(1, incarnation=1)
    within(30, lambda: held and seats._newcomer, "the readiness of the standby")
    standby.abandon()
    until_told(server, ("Lost", standby_of(S), 0))
    everyone[2]._node.post(lambda: note(*held[0]))
    seats.note_doubled = note
    second = group.join(1, incarnation=2)
    assert until_told(server, ("Replaced", standby_of(S), 2))[:-1] == []
    second.abandon()


@pytest.mark.parametrize("kept", [False, True])
def test_a_standby_that_comes_after_a_replacement_has_nothing_for_its_predecessor(company, kept):
    """The server has yet to hear of the worker's replacement when it gives the standby its state."""
    everyone, group = company(**WITH_STANDBY)
    group.all(lambda rank: everyone[rank].begin())
    server, standby = everyone[2].transport, everyone[1].transport

    def message(number):
        return Envelope(S, "run", Credit(round=number, partitions=1))

    for number in range(3):
        standby.keep(A, message(number))
    everyone[0].abandon()
    until_told(server, ("Lost", A, 0))
    worker = group.join(0, incarnation=1)
    until_told(standby, ("Replaced", A, 1))
    everyone[2].abandon()
    until_told(standby, ("Lost", S, 0))
    standby.take_over()
    assert standby.kept == {}
    if kept:
        standby.keep(A, message(3))
    second = group.join(2, incarnation=1)
    until_told(standby, ("Replaced", standby_of(S), 1))
    second.transport.begin({A: 3 + kept}, standby.kept, {A: 0})
    everyone[1].abandon()
    until_told(second.transport, ("Lost", S, 0))
    second.transport.take_over()
    second.transport.forget(A)
    if not kept:
        second.transport.send(A, message(3))
    first = next_arrival(worker.transport)
    assert (first.source, first.envelope.message.round, first.skipped) == (S, 3, 3)
    for each in (worker, second):
        each.abandon()


def test_a_greeting_is_not_lost_that_comes_between_the_news_of_the_loss_and_of_the_replacement(company):
    """The replacement has connected before the server hears of the loss."""
    everyone, group = company(lost=frozenset({0}))
    group.all(lambda rank: everyone[rank].begin())
    server, scheduler = everyone[2], everyone[3]
    members, add, held = server._node._members, scheduler._add, {"joins": [], "losses": [], "lists": []}
    take_list, announce, connections = members.take_list, members.deaths.announce, members.sockets.incoming._members
    members.take_list = lambda sender, control: held["lists"].append((sender, control)) or ()
    members.deaths.announce = lambda body: held["losses"].append(body) or ()
    scheduler._add = lambda node, sent: held["joins"].append((node, sent))
    old = connections[id_of(NodeRole.WORKER, 0)]
    everyone[0].abandon()
    within(30, lambda: held["losses"], "the news of the loss at the server")
    joining = group.pool.submit(group.join, 0, 1)
    within(30, lambda: held["joins"] and held["lists"], "the list at the server")
    within(30, lambda: connections.get(id_of(NodeRole.WORKER, 0), old) is not old, "the connection of the replacement")
    members.take_list, members.deaths.announce, scheduler._add = take_list, announce, add
    body, heartbeat = held["losses"][0], Control(Command.HEARTBEAT)
    server._node.post(lambda: server._node._receiver._handle_control(SCHEDULER_ID, Meta(body=body), heartbeat))
    scheduler._node.post(lambda: add(*held["joins"][0]))
    time.sleep(0.5)
    assert not joining.done()
    server._node.post(lambda: [server._observe(node) for node in take_list(*held["lists"][0])])
    joining.result(30).abandon()


@pytest.mark.thorough
def test_the_scheduler_names_the_first_that_is_silent(company):
    everyone, group = company(heartbeat_interval=0.1, heartbeat_timeout=1.0)
    everyone[1].abandon()

    def wait(rank):
        with pytest.raises(LostError) as caught:
            everyone[rank].barrier()
        return caught.value.peer, caught.value.host

    assert group.pool.submit(wait, 3).result(30) == (B, "here")
    everyone[3].abandon()
    assert group.pool.submit(wait, 0).result(30) == (Peer("scheduler", 0), "here")


def test_a_stranger_is_not_counted():
    texts = Texts("launch", (1, 9), (8,))
    assert texts.add(9, Text(0, 0, "another", ""))[0] == "node 9 is of another launch"
    assert texts.add(9, Text(0, 2, "launch", ""))[0] == "node 9 is of another launch"
    assert texts.add(9, Text(0, 1, "launch", "b")) == ("", [])
    assert "rank 1" in texts.add(11, Text(0, 1, "launch", "c"))[0]
    assert "second text" in texts.add(9, Text(0, 1, "launch", "c"))[0]
    assert texts.add(1, Text(0, 0, "launch", "a")) == ("", [Everyone(0, ("a", "b"))])
    assert "second text" in texts.add(1, Text(0, 0, "launch", "a"))[0]


def test_texts_do_not_wait_for_a_lost_process_but_for_its_replacement():
    texts = Texts("launch", (1, 8, 11, 9), (8,))
    joins = Text(JOINS, 2, "launch", "")
    for rank, id_ in enumerate((1, 8)):
        texts.add(id_, Text(0, rank, "launch", "ab"[rank]))
    texts.add(9, Text(0, 3, "launch", "d"))
    assert texts.lose(2) == [Everyone(0, ("a", "b", "", "d"))]
    assert texts.join(11, joins) == ("", None), "before the run it waits"
    texts.begin()
    texts.add(1, Text(1, 0, "launch", "a"))  # the scheduler, which has no role
    texts.add(9, Text(1, 3, "launch", "d"))  # a worker, while the last model is evaluated
    assert texts.join(11, joins) == ("", Everyone(1, ()))
    assert "node 9 claims" in texts.join(9, joins)[0]
    assert texts.unneeded() == []
    assert texts.add(8, Text(1, 1, "launch", "b")) == ("", [])
    assert texts.unneeded() == [2]
    assert texts.add(11, Text(1, 2, "launch", "c")) == ("", [Everyone(1, ("a", "b", "c", "d"))])
    assert texts.unneeded() == []
    assert texts.lose(2) == []
    assert texts.join(11, joins) == ("", Everyone(OVER, ())), "the others have finished the run"


def test_a_new_standby_is_needed_until_its_own_server_has_finished():
    """The server may just have begun to wait for it, though server 0 has finished."""
    texts = Texts("launch", (1, 8, 11, 10, 13), (8, 11), [(1, 2), (3, 4)])
    texts.begin()
    assert texts.lose(4) == []
    assert texts.join(13, Text(JOINS, 4, "launch", "")) == ("", Everyone(0, ()))
    for rank, id_ in enumerate((1, 8, 11)):
        texts.add(id_, Text(0, rank, "launch", ""))
    assert texts.unneeded() == []
    texts.add(10, Text(0, 3, "launch", ""))
    assert texts.unneeded() == [4]


@pytest.mark.thorough
@given(st.binary() | st.recursive(st.integers() | st.text() | st.none(), st.lists).map(str).map(str.encode))
def test_any_other_bytes_are_no_text(frame):
    assume(not re.fullmatch(rb"\[-?\d+, \[.*\]\]", frame))  # a number and a list may be texts
    for kind in (Text, Everyone):
        with pytest.raises(InputError):
            parse_as(kind, "it", frame)


def test_what_comes_before_a_new_process_knows_the_servers_is_of_the_server(company):
    """The standby has taken the place of the server, and sends a message before the table of servers comes."""
    everyone, _ = company(**WITH_STANDBY)
    new, standby = everyone[0].transport, everyone[1].transport
    standby.send(A, Envelope(S, "run", Credit(round=3, partitions=1)))
    within(10, lambda: new._inbox, "a message")
    new.seat({S: (everyone[1]._node.id, everyone[2]._node.id)})
    assert next_arrival(new).source == S
