from hpcps.transport.pslite.meta import NodeInfo, NodeRole
from hpcps.transport.pslite.scheduling import NodeRegistry


def node(role, port, host="10.0.0.1", id_=2**31 - 1):
    return NodeInfo(NodeRole[role], host, port, id_)


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


def test_who_is_missing_is_said():
    registry = NodeRegistry(1, 2)
    registry.add(node("WORKER", 300))
    assert registry.missing() == "1 of 1 servers and 1 of 2 workers"


def test_who_does_not_belong_is_refused():
    registry = NodeRegistry(1, 2)
    registry.add(node("SERVER", 200))
    assert "scheduler" in registry.refusal(node("SCHEDULER", 100))
    assert "must have no id" in registry.refusal(node("WORKER", 100, id_=9))
    assert "twice" in registry.refusal(node("SERVER", 200))
    assert "one more" in registry.refusal(node("SERVER", 201))


def test_a_newcomer_takes_the_id_of_a_dead_node_of_its_role():
    registry = full()
    registry.add(node("WORKER", 400))
    assert registry.recover(set()) == [], "nobody has died"
    assert registry.recover({8}) == [], "only a server has"
    [back] = registry.recover({8, 11})
    assert (back.id, back.port, back.is_recovery) == (11, 400, True)
    assert registry.nodes[11] == back
    assert registry.recover({8, 9}) == [], "nobody waits any more"


def test_a_newcomer_with_the_address_of_a_node_takes_its_id_at_once():
    registry = full()
    registry.add(node("WORKER", 100))
    assert [each.id for each in registry.recover(set())] == [9]


def test_two_newcomers_share_no_id_and_no_more_wait_than_there_are_nodes():
    registry = full()
    for port in (401, 402, 403):
        assert registry.refusal(node("WORKER", port)) is None
        registry.add(node("WORKER", port))
    assert "one more" in registry.refusal(node("WORKER", 404))
    assert sorted(each.id for each in registry.recover({9, 11})) == [9, 11]
