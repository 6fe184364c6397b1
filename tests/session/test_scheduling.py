"""Priorities and credits: which of the large tensors that wait is sent next, at the worker and at the aggregator."""

import random

import numpy as np
import pytest
from members import Members

from hpcps.errors import SpecError
from hpcps.protocol.messages import Alive, TensorResult, TensorUpdate
from hpcps.session.buckets import PARTITION
from hpcps.session.outbox import CREDIT, checked_credit, checked_priority
from hpcps.session.tensors import Declaration

LARGE = PARTITION // 4


def begin(member, name, values, priority=0, reduction="sum"):
    tensor = member.declare(Declaration(name, "float32", ((values.size,),), reduction))
    target = np.zeros_like(values)
    member.start(tensor, [values.view(np.uint8)], [target.view(np.uint8)], priority=priority)
    return target


def names_of(members, link, number=1000):
    """Let the link of a process send messages; return the names of the tensors in them."""
    process, names = members.all[members.links.index(link)], []
    for _ in range(number):
        message = link.advance()
        process.step()
        if isinstance(message, TensorUpdate | TensorResult):
            bucket = message.bucket
            tensors = members.workers[0].participant._tensors.values()
            names += [each.declaration.name for each in tensors if each.declaration.bucket == bucket]
    return names


def settle(members, order=None):
    """Step all members and links until nothing happens."""
    while True:
        links = [link.advance() for link in members.links]
        if not sum([member.step() for member in members.all]) and links == [None] * len(links):
            return


def test_the_most_urgent_tensor_is_sent_next_and_the_first_of_equal_ones():
    members = Members(2, 1, credit=PARTITION)
    worker, values = members.workers[0], np.ones(LARGE, np.float32)
    for name, priority in (("first", -5), ("a", -3), ("b", 7), ("c", -3), ("d", 0)):
        begin(worker, name, values, priority)
    assert names_of(members, members.links[0], 2) == ["first", "b"]
    begin(worker, "late", values, 1 << 40)  # it overtakes what waits, and not what the transport has
    assert names_of(members, members.links[0]) == ["d", "late", "a", "c"]


def test_without_a_bound_tensors_are_sent_in_the_order_in_which_they_begin():
    members = Members(2, 1, credit=0)
    for name, priority in (("first", 0), ("a", 1), ("b", 2)):
        begin(members.workers[0], name, np.ones(LARGE, np.float32), priority)
    assert names_of(members, members.links[0]) == ["first", "a", "b"]


def test_a_process_that_begins_many_tensors_goes_on_receiving():
    members = Members(2, 1)
    worker, values = members.workers[0], np.ones(2 * LARGE, np.float32)
    for name in "abc":
        tensor = worker.declare(Declaration(name, "float32", ((values.size,),), "sum"))
        target = np.zeros_like(values)
        worker.start(tensor, [values.view(np.uint8)], [target.view(np.uint8)], later=True)
    worker.flush()
    assert worker.traffic.sent < values.nbytes
    for number in range(1, 7):  # each step sends a part, and handles a message that has come
        members.links[2].send(worker.peer, members.all[2]._envelopes.around(Alive()))
        received = worker.traffic.received
        assert worker.step()
        assert number * LARGE * 4 < worker.traffic.sent < (number + 1) * LARGE * 4
        assert worker.traffic.received > received
    assert not worker.step()


def test_the_aggregator_sends_results_in_the_order_of_the_last_worker():
    members = Members(2, 1, credit=PARTITION)
    server, values = members.all[-1], np.ones(LARGE, np.float32)
    for member, priorities in zip(members.workers, ((9, 5, 1, 0), (0, 1, 2, 8)), strict=True):
        for name, priority in zip("abcd", priorities, strict=True):
            begin(member, name, values, priority)
    for link in members.links[:2]:  # the second worker is the last one for each tensor
        while link.advance() is not None:
            members.all[members.links.index(link)].step()
    while server.step():
        pass
    # It has sent the results of what came first; of the others, those with the highest priority go first.
    found = names_of(members, members.links[2])
    assert found == ["a", "d", "d", "c", "c", "b", "b", "a"]


@pytest.mark.parametrize("credit", [PARTITION, 3 * PARTITION])
def test_a_transport_has_at_most_the_credit_and_one_message_to_send(credit):
    members = Members(2, 2, credit=credit)
    for k, member in enumerate(members.workers):
        for name in range(9):
            begin(member, str(name), np.ones(LARGE, np.float32), name * (-1) ** k)
    most = 0
    while any(member.participant.open for member in members.workers):
        for member, link in zip(members.all, members.links, strict=True):
            most = max(most, link.unsent)
            link.advance()
            member.step()
    assert credit <= most < credit + PARTITION


@pytest.mark.thorough
@pytest.mark.parametrize("servers", [0, 1, 3])
def test_random_orders_priorities_and_credits_change_no_bit_and_never_stop(servers):
    draw = random.Random(servers)
    for _ in range(5):
        members = Members(draw.randint(1, 4), servers, credit=0)
        for member in members.all:
            member.outbox.credit = draw.choice((0, PARTITION, 2 * PARTITION))
        sizes = [draw.choice((1, 20_000, LARGE, 3 * LARGE)) for _ in range(6)]
        for member in members.workers:
            for k, size in enumerate(sizes):
                member.declare(Declaration(str(k), "float32", ((size,),), "mean"))
        for turn in range(2):
            given = [
                [np.random.default_rng(k + turn).standard_normal(size).astype("f4") * (w + 1) for w in range(4)]
                for k, size in enumerate(sizes)
            ]
            targets = []
            for w, member in enumerate(members.workers):
                for k in draw.sample(range(len(sizes)), len(sizes)):
                    target = begin(member, str(k), given[k][w], draw.randint(-2, 2), "mean")
                    targets.append((k, target))
                    for _ in range(draw.randint(0, 3)):
                        which = draw.randrange(len(members.all))
                        members.links[which].advance()
                        members.all[which].step()
            for member in members.workers:
                member.flush()
            settle(members)
            for k, target in targets:
                rows = [row.astype(np.float64) for row in given[k][: len(members.workers)]]
                np.testing.assert_array_equal(target, (sum(rows[1:], rows[0]) / len(rows)).astype("f4"))


def test_a_process_that_ends_sends_what_waits_before_it_says_so():
    members = Members(2, credit=PARTITION)
    targets = [
        begin(member, name, np.ones(4 * LARGE, np.float32), priority=int(name))
        for member in members.workers
        for name in "12345"
    ]
    first, second = members.workers
    while second.outbox or members.links[1].unsent:
        members.links[1].advance(), second.step()
    while first.participant.open:  # its updates are urgent, and the results for the other one wait
        while first.step():
            pass
        members.links[0].advance()
        while second.step() or members.links[1].advance():
            pass
    assert first.outbox, "results for the other process wait"
    first.leave()
    assert not first.outbox
    settle(members)
    second.check()
    assert not second.participant.open
    for target in targets:
        np.testing.assert_array_equal(target, np.full_like(target, 2))


@pytest.mark.parametrize(("crossed", "wanted"), [(False, [0, 0, 0]), (True, [0, -2, -4])])
def test_the_first_layers_have_the_highest_priority_if_a_step_does_not_wait_for_all(crossed, wanted):
    torch = pytest.importorskip("torch")
    import hpcps.torch as bps
    from hpcps.session.current import session

    bps.init(alone=True)
    try:
        session().partition, priorities = 300, {}
        start = session().start

        def noted(tensor, *values):
            priorities[tensor.declaration.name] = values[-1]
            return start(tensor, *values)

        session().start = noted
        model = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
        optimizer = bps.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        if crossed:
            bps.CrossBarrier(model, optimizer)
        model(torch.ones(1, 8)).sum().backward()
        optimizer.step()
        names = [f"gradient/{k}.bias to gradient/{k}.weight" for k in range(3)]
        assert [priorities[name.replace("gradient", _prefix(priorities))] for name in names] == wanted
        bps.push_pull(torch.ones(3), name="x", priority=7)
        assert priorities["x"] == 7
    finally:
        bps.shutdown()


def _prefix(names):
    """Return what the names of gradients begin with, after other tests have made optimizers."""
    return next(name.partition("/0.")[0] for name in names if "/0.bias" in name)


def test_bad_priorities_and_credits_are_refused_with_the_remedy(monkeypatch):
    for wrong in (1.0, "high", None, True, 1 << 70):
        with pytest.raises(SpecError, match=r"priority is .*: give a whole number; a larger one is more urgent"):
            checked_priority(wrong)
    assert checked_priority(np.int64(-3)) == -3
    for wrong in (PARTITION - 1, -1, 1e9, "4 MiB", True):
        with pytest.raises(SpecError, match=rf"credit is .* at least {PARTITION}, .* or 0 for no bound"):
            checked_credit(wrong)
    assert [checked_credit(0), checked_credit(PARTITION), checked_credit()] == [0, PARTITION, CREDIT]
    monkeypatch.setenv("BYTEPS_SCHEDULING_CREDIT", "3")
    assert [checked_credit(), checked_credit(0)] == [3 * PARTITION, 0]
    monkeypatch.setenv("BYTEPS_SCHEDULING_CREDIT", "0")
    assert checked_credit() == 0
    monkeypatch.setenv("BYTEPS_SCHEDULING_CREDIT", "many")
    with pytest.raises(SpecError, match="BYTEPS_SCHEDULING_CREDIT is 'many': give a number of partitions, or 0"):
        checked_credit()
