from dataclasses import replace

import pytest

from hpcps.transport.pslite.membership import Deaths, objection
from hpcps.transport.pslite.meta import NodeInfo, NodeRole
from hpcps.transport.pslite.scheduling import NodeRegistry
from hpcps.transport.pslite.settings import Settings


def node(role, port, host="10.0.0.1", id_=2**31 - 1):
    return NodeInfo(NodeRole[role], host, port, id_)


def wanting(port, rank, **more):
    return replace(node("WORKER", port), wanted=rank, **more)


def full():
    registry = NodeRegistry(1, 2)
    for each in (node("WORKER", 300), node("SERVER", 200), node("WORKER", 100)):
        assert registry.refusal(each) is None
        registry.add(each)
    return registry


def test_ids_are_given_when_all_have_come_in_the_order_of_addresses():
    registry = full()
    assert registry.complete
    assert {id_: each.port for id_, each in registry.nodes.items()} == {8: 200, 9: 100, 11: 300}


def test_who_does_not_belong_is_refused():
    registry = NodeRegistry(1, 2)
    registry.add(node("SERVER", 200))
    assert "scheduler" in registry.refusal(node("SCHEDULER", 100))
    assert "must have no id" in registry.refusal(node("WORKER", 100, id_=9))
    assert "twice" in registry.refusal(node("SERVER", 200))
    assert "one more" in registry.refusal(node("SERVER", 201))


def test_ids_go_to_those_that_ask_for_them():
    registry = NodeRegistry(1, 2)
    for each in (wanting(300, 0), node("SERVER", 200), wanting(100, 1)):
        assert registry.refusal(each) is None
        registry.add(each)
    assert {id_: each.port for id_, each in registry.nodes.items()} == {8: 200, 9: 300, 11: 100}


def test_a_rank_is_asked_for_once():
    registry = NodeRegistry(1, 2)
    registry.add(wanting(300, 1))
    assert "asks for rank 1, for which another" in registry.refusal(wanting(301, 1))
    assert "asks for rank 2 of 2" in registry.refusal(wanting(301, 2))
    # Its predecessor was lost before it had an id.
    assert registry.refusal(wanting(302, 1, incarnation=1)) is None
    registry.add(wanting(302, 1, incarnation=1))
    registry.add(wanting(100, 0))
    registry.add(node("SERVER", 200))
    assert {id_: each.port for id_, each in registry.nodes.items()} == {8: 200, 9: 100, 11: 302}


def test_a_replacement_gets_the_id_of_its_predecessor_and_no_other():
    registry = NodeRegistry(1, 2)
    for each in (wanting(300, 0), node("SERVER", 200), wanting(100, 1)):
        registry.add(each)
    registry.add(wanting(400, 1, incarnation=1))
    assert registry.recover({9}) == []
    (new,) = registry.recover({9, 11})
    assert (new.id, new.port, new.is_recovery, new.incarnation) == (11, 400, True, 1)
    # The address of another node, which is dead, means nothing.
    registry.add(replace(wanting(300, 1, incarnation=2)))
    assert registry.recover({9}) == []


ME = NodeInfo(NodeRole.WORKER, "10.0.0.1", 500)
SETTINGS = Settings(role=NodeRole.WORKER, servers=1, workers=2, root_host="10.0.0.9", root_port=9000)
SCHEDULER = NodeInfo(NodeRole.SCHEDULER, "10.0.0.9", 9000, 1)
SERVER = NodeInfo(NodeRole.SERVER, "10.0.0.1", 400, 8)
OTHER = NodeInfo(NodeRole.WORKER, "10.0.0.2", 300, 11)
FULL = [replace(ME, id=9), SERVER, OTHER, SCHEDULER]


def test_the_list_of_all_is_taken_once():
    assert objection(FULL, ME, SETTINGS, first=True) is None
    assert "second list" in objection(FULL, ME, SETTINGS, first=False)


def test_later_lists_have_nodes_that_came_back():
    back = [replace(OTHER, is_recovery=True)]
    assert objection(back, ME, SETTINGS, first=False) is None
    assert "1 nodes where there are 4" in objection(back, ME, SETTINGS, first=True)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([*FULL[:3], replace(SCHEDULER, id=8)], "with the ids"),
        ([*FULL, replace(OTHER, id=13)], "with the ids"),
        ([*FULL[:3], replace(SERVER, id=1)], "not of their roles"),
        ([replace(ME, id=9, port=501), *FULL[1:]], "this one 0 times"),
        ([replace(ME, id=9), SERVER, replace(ME, id=11), SCHEDULER], "this one 2 times"),
        (FULL[:3], "3 nodes where there are 4"),
    ],
)
def test_other_lists_are_refused(nodes, reason):
    assert reason in objection(nodes, ME, SETTINGS, first=True)


def test_a_replaceable_node_that_was_declared_dead_stays_dead_until_it_is_replaced():
    settings = replace(SETTINGS, role=NodeRole.SCHEDULER, replaceable=frozenset({9}), silence=2.0)
    deaths = Deaths(settings, {}, {9: replace(ME, id=9), 11: OTHER})
    deaths.alive(9)
    deaths.alive(11)
    assert not deaths.known()
    deaths.forgive(-5.0)  # as if so many seconds had passed
    assert [(death.node.id, death.why) for death in deaths.known()] == [(9, "it has sent nothing for 2 s")]
    deaths.forgive(5.0)  # this process was stopped itself
    deaths.declare()
    assert not deaths.known()
    deaths.forgive(-5.0)
    deaths.declare()
    deaths.alive(9)
    assert deaths.final(9)
    assert not deaths.final(11)
    assert [death.node.id for death in deaths.known()] == [9]
    deaths.replaced(9)
    assert not deaths.known()
