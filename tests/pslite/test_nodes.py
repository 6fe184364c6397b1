"""Our nodes among themselves: meeting, barriers, lost messages, deaths, strangers."""

import logging
import random
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import zmq
from mutation import SAMPLES, mutated
from threads import Cluster

from hpcps.errors import LaunchError, RunError
from hpcps.kvstore import Client, Server
from hpcps.transport.pslite.encoding import decode, encode
from hpcps.transport.pslite.meta import EVERYONE, WORKERS, Command, Control, Meta, NodeInfo, NodeRole
from hpcps.transport.pslite.node import Node

LOSSY = {"resend": True, "resend_timeout": 0.03, "resend_limit": 100}
# A machine that does other things too must not make a node look dead.
BEATING = {"heartbeat_interval": 0.2, "heartbeat_timeout": 2.0}


def vector(value, size=1000):
    return np.full(size, value, np.float32)


def wait_until(condition, seconds=40.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.01)


def listening(port):
    """Return the addresses that somebody of this host listens at on a port."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    here = [local.split(":") for _, local, _, state, *_ in lines if state == "0A"]
    return {".".join(str(byte) for byte in bytes.fromhex(address)[::-1]) for address, at in here if int(at, 16) == port}


def test_ranks_follow_the_ports_and_everyone_knows_everyone():
    cluster = Cluster(2, 3)

    def job(kv):
        return kv.node.me.port, {id_: node.port for id_, node in kv.node.nodes.items()}

    results = cluster.run(job)
    ports = [port for port, _ in results]
    assert ports == sorted(ports)
    assert all(table == results[0][1] for _, table in results)
    assert sorted(results[0][1]) == [1, 8, 9, 10, 11, 13]


def test_nodes_listen_at_the_loopback_address_only():
    cluster = Cluster(1, 1)

    def job(kv):
        return [listening(node.port) for node in kv.node.nodes.values()]

    assert cluster.run(job) == [[{"127.0.0.1"}] * 3]


def test_a_barrier_lets_nobody_through_before_the_last():
    cluster = Cluster(1, 3)
    here, most_before = [], []

    def job(kv):
        for turn in range(5):
            time.sleep(0.02 * ((kv.rank + turn) % 3))
            here.append(turn)
            kv.barrier()
            most_before.append(here.count(turn))
            kv.barrier()

    cluster.run(job)
    assert most_before == [3] * 15


def test_lost_messages_come_all_the_same_and_are_used_once():
    """Every fifth message that any node receives is thrown away, requests, answers and acknowledgements alike."""
    random.seed(5)
    cluster = Cluster(2, 3, **LOSSY, drop_rate=20)
    rounds = 6

    def job(kv):
        kv.init(0, vector(0))
        kv.init(1, vector(0))
        seen = []
        for turn in range(rounds):
            for key in (0, 1):
                kv.push(key, vector(10**kv.rank * (turn + 1)))
            kv.barrier()
            seen.append([float(kv.pull(key, vector(-1))[0]) for key in (0, 1)])
            kv.barrier()
        return seen

    # Sync: the sum of the three, no push missing and none twice.
    assert cluster.run(job) == [[[111.0 * (turn + 1)] * 2 for turn in range(rounds)]] * 3
    assert sum(node.courier.resent for node in cluster.nodes) > 5
    assert sum(node.courier.duplicates for node in cluster.nodes) > 5


def test_lost_pushes_are_added_once_in_async_mode():
    cluster = Cluster(1, 2, **LOSSY, drop_rate=20)

    def job(kv):
        kv.init(0, vector(0))
        for _ in range(30):
            kv.push(0, vector(1))
        kv.barrier()
        return float(kv.pull(0, vector(-1))[0])

    assert cluster.run(job, sync=False) == [60.0, 60.0]


def test_without_acknowledgements_a_lost_message_is_missed():
    """The test above could not fail otherwise."""
    cluster = Cluster(1, 1, drop_rate=30, timeout=1.5)
    with pytest.raises((RunError, LaunchError)):
        cluster.run(lambda kv: [kv.push(0, vector(1)) for _ in range(30)])


def test_a_worker_that_died_and_came_back_takes_its_id_and_goes_on():
    cluster = Cluster(1, 2, **BEATING)
    scheduler, ended = cluster.scheduler()
    _, served = cluster.server()
    met, died, back = threading.Event(), threading.Event(), threading.Event()

    def stays(kv):
        kv.init(0, vector(7))
        met.wait(60)
        back.wait(60)
        kv.push(0, vector(1))
        return float(kv.pull(0, vector(0))[0])

    clients = []

    def dies():
        client = Client(cluster.settings(NodeRole.WORKER))
        clients.append(client.rank)
        client.init(0, vector(7))
        client.node.abandon()
        died.set()

    def returns(kv):
        back.set()
        kv.init(0, vector(-5))  # nothing: the key has its value
        before = float(kv.pull(0, vector(0))[0])
        kv.push(0, vector(2))
        return kv.node.recovered, kv.rank, before, float(kv.pull(0, vector(0))[0])

    stayed = cluster.worker(stays)
    cluster.pool.submit(dies).result(100)
    met.set()
    returned = cluster.worker(returns)
    assert returned.result(100) == (True, clients[0], 7.0, 3.0)
    assert stayed.result(100) == 3.0
    assert (ended.result(100), served.result(100)) == (None, None)
    assert scheduler.strays.counts == {}


def test_a_server_that_died_and_came_back_takes_its_id(caplog):
    cluster = Cluster(2, 1, **BEATING)
    scheduler, ended = cluster.scheduler()
    first, _ = cluster.server()
    _, served = cluster.server()

    def job(kv):
        key = 0 if first.node.rank == 0 else 1
        kv.init(key, vector(7))
        lost = first.node.id
        first.node.abandon()
        wait_until(lambda: [node.id for node in scheduler.dead()] == [lost])
        third, served_again = cluster.server()
        wait_until(lambda: kv.node.nodes[lost].is_recovery)
        wait_until(lambda: third.node.id == lost)
        with pytest.raises(RunError, match="no such key"):
            kv.pull(key, vector(0))
        kv.push(key, vector(9))  # the first push of a key, as in init
        return served_again, float(kv.pull(key, vector(0))[0])

    served_again, value = cluster.worker(job).result(100)
    assert value == 9.0
    assert [each.result(100) for each in (ended, served, served_again)] == [None] * 3
    assert "has not been heard of for 2 s: it is dead" in caplog.text


def test_a_dead_scheduler_is_told_of(caplog):
    caplog.set_level(logging.CRITICAL)
    cluster = Cluster(1, 1, **BEATING)
    scheduler, ended = cluster.scheduler()
    _, served = cluster.server()
    client = Client(cluster.settings(NodeRole.WORKER))
    scheduler.abandon()
    with pytest.raises(RunError, match="scheduler"):
        client.barrier()
    client.node.abandon()
    with pytest.raises(RunError, match=r"the scheduler at .* is dead"):
        served.result(100)
    ended.cancel()


def test_who_does_not_come_is_named():
    cluster = Cluster(1, 2, timeout=1.0)
    _, ended = cluster.scheduler()
    worker = cluster.worker(lambda kv: None)
    with pytest.raises(LaunchError, match="not registered are 1 of 1 servers and 1 of 2 workers"):
        ended.result(100)
    with pytest.raises(LaunchError, match="has sent no list of nodes; it does when 1 servers and 2 workers"):
        worker.result(100)


def test_a_port_that_is_taken_is_named():
    cluster = Cluster()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.bind(f"tcp://127.0.0.1:{cluster.common['root_port']}")
        with pytest.raises(LaunchError, match=r"cannot listen at 127.0.0.1:.*in use; take another"):
            cluster.scheduler()[1].result(100)


def test_strangers_change_nothing(caplog):
    """Frames from nobody, from unknown ids and from nodes that may not send them, while a run goes on."""
    cluster = Cluster(1, 2)
    source = random.Random(3)
    scheduler, ended = cluster.scheduler()
    server, served = cluster.server()

    def attack(nodes):
        for identity in (None, b"ps4711", b"ps-1", b"garbage", b"ps8"):
            with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
                if identity:
                    socket.setsockopt(zmq.IDENTITY, identity)
                socket.setsockopt(zmq.LINGER, 2000)
                # A server may not speak to a server.
                for node in nodes if identity != b"ps8" else [server.node.me]:
                    socket.connect(f"tcp://{node.host}:{node.port}")
                stop = encode(Meta(head=2, request=True, simple_app=True, app=0, customer=0, timestamp=1))
                register = encode(Meta(control=Control(Command.ADD_NODE, (nodes[0],)), timestamp=0))
                leave = encode(Meta(control=Control(Command.TERMINATE)))
                pull = [encode(Meta(head=0, request=True, pull=True, timestamp=3)), b"\0" * 8, b""]
                for _ in range(len(nodes)):
                    for frames in ([stop], [register], [leave], pull, [b""], [SAMPLES[1]], [b"x"] * 300):
                        socket.send_multipart(frames)
                    for _ in range(100):
                        socket.send_multipart([mutated(source), source.randbytes(8), source.randbytes(4)])

    def job(kv):
        kv.init(0, vector(7))
        if kv.rank == 0:
            attack(list(kv.node.nodes.values()))
        kv.barrier()
        kv.push(0, vector(kv.rank + 1))
        return float(kv.pull(0, vector(0))[0]), kv.node.strays.counts

    results = [each.result(100) for each in [cluster.worker(job), cluster.worker(job)]]
    assert [value for value, _ in results] == [3.0, 3.0]
    assert (ended.result(100), served.result(100)) == (None, None)
    for counts in (scheduler.strays.counts, server.node.strays.counts, *(counts for _, counts in results)):
        assert counts["malformed"] > 100, counts
        assert counts["foreign"] > 50, counts
    # Not a line for each of thousands.
    assert 10 < sum("dropped a" in record.getMessage() for record in caplog.records) < 150


def test_an_error_in_the_application_ends_the_node_with_its_cause(caplog):
    caplog.set_level(logging.CRITICAL)
    cluster = Cluster(1, 1)
    cluster.scheduler()
    _, served = cluster.server()
    client = Client(cluster.settings(NodeRole.WORKER))
    meta = Meta(head=0, body=b"cos\nsystem\n", request=True, simple_app=True, app=0, customer=0, timestamp=99)
    client.node.send(8, meta)
    with pytest.raises(RunError, match="optimizer: it is pickled, and nothing is unpickled here"):
        served.result(100)
    client.node.abandon()


def test_a_mesh_node_also_reaches_its_own_kind():
    cluster = Cluster(1, 2)
    cluster.scheduler()
    came = {}
    arrived = threading.Event()

    def work():
        def take(delivery):
            came[delivery.sender] = delivery.meta.body
            if len(came) == 2:
                arrived.set()

        node = Node(cluster.settings(NodeRole.WORKER), take, mesh=True)
        node.start()
        other = 20 - node.id  # 9 and 11
        node.send(other, Meta(head=1, body=b"%d" % node.id, timestamp=node.timestamp()))
        node.barrier(WORKERS)
        assert arrived.wait(60)
        with pytest.raises(RunError, match="no connection to node 99"):
            node.send(99, Meta(head=1, timestamp=0))
        node.stop()

    server = Server(cluster.settings(NodeRole.SERVER))
    serving = cluster.pool.submit(lambda: (server.node.start(), server.node.stop(), server.node.id)[2])
    for worker in [cluster.pool.submit(work), cluster.pool.submit(work)]:
        worker.result(100)
    assert came == {9: b"9", 11: b"11"}
    assert serving.result(100) == 8
    assert EVERYONE == 7


def test_who_speaks_before_the_list_of_nodes_has_come_is_heard_after_it():
    cluster = Cluster(1, 1)
    delivered = []
    node = Node(cluster.settings(NodeRole.WORKER), delivered.append)
    with zmq.Context() as context, context.socket(zmq.ROUTER) as scheduler:
        scheduler.setsockopt(zmq.LINGER, 0)
        scheduler.bind(f"tcp://127.0.0.1:{cluster.common['root_port']}")
        started = cluster.pool.submit(node.start)
        [worker] = decode(scheduler.recv_multipart()[1]).control.nodes
        speakers = {name: context.socket(zmq.DEALER) for name in (b"ps1", b"ps8", b"ps77")}
        for name, socket in speakers.items():
            socket.setsockopt(zmq.IDENTITY, name)
            socket.setsockopt(zmq.LINGER, 0)
            socket.connect(f"tcp://127.0.0.1:{worker.port}")
        for name in (b"ps8", b"ps77"):
            speakers[name].send(encode(Meta(head=0, body=name, timestamp=0)))
        wait_until(lambda: len(node._early) == 2)
        host, port = "127.0.0.1", cluster.common["root_port"]
        everyone = (
            NodeInfo(NodeRole.WORKER, host, worker.port, 9),
            NodeInfo(NodeRole.SERVER, host, port, 8),
            NodeInfo(NodeRole.SCHEDULER, host, port, 1),
        )
        speakers[b"ps1"].send(encode(Meta(control=Control(Command.ADD_NODE, everyone), timestamp=0)))
        speakers[b"ps1"].send(encode(Meta(control=Control(Command.BARRIER), app=0, customer=0, timestamp=1)))
        wait_until(lambda: delivered)
        node.abandon()
        for socket in speakers.values():
            socket.close()
    started.exception(100)
    assert [each.meta.body for each in delivered] == [b"ps8"]
    assert node.strays.counts == {"foreign": 1}
