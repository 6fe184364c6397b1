"""Our nodes among themselves: registration, barriers, lost messages, deaths, strangers."""

import logging
import random
import re
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import zmq
from mutation import SAMPLES, mutated, mutated_data
from running_processes import within
from threads import Cluster

from hpcps.errors import LaunchError, RunError
from hpcps.kvstore import Client
from hpcps.kvstore.protocol import Pairs
from hpcps.transport.pslite.encoding import MalformedFrameError, decode, encode
from hpcps.transport.pslite.membership import RECONNECTION
from hpcps.transport.pslite.meta import Command, Control, Meta, NodeInfo, NodeRole
from hpcps.transport.pslite.node import Node

LOSSY = {"resend": True, "resend_timeout": 0.03, "resend_limit": 100}
# A machine that does other things too must not make a node look dead.
BEATING = {"heartbeat_interval": 0.2, "heartbeat_timeout": 2.0}


def vector(value, size=1000):
    return np.full(size, value, np.float32)


def listening(port):
    """Return the addresses that somebody of this host listens at on a port."""
    lines = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    here = [local.split(":") for _, local, _, state, *_ in lines if state == "0A"]
    return {".".join(str(byte) for byte in bytes.fromhex(address)[::-1]) for address, at in here if int(at, 16) == port}


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


@pytest.mark.thorough
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
    assert sum(node.sender.resender.resent for node in cluster.nodes) > 5
    assert sum(node.sender.resender.duplicates for node in cluster.nodes) > 5


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
    assert scheduler.dropped.counts == {}


@pytest.mark.thorough
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
        within(40, lambda: [death.node.id for death in scheduler.deaths()] == [lost], "the report of the lost server")
        third, served_again = cluster.server()
        within(40, lambda: kv.node.nodes[lost].is_recovery, "the recovery of the lost server")
        within(40, lambda: third.node.id == lost, "the id of the lost server for the third")
        with pytest.raises(RunError, match="no such key"):
            kv.pull(key, vector(0))
        kv.push(key, vector(9))  # the first push of a key, as in init
        return served_again, float(kv.pull(key, vector(0))[0])

    served_again, value = cluster.worker(job).result(100)
    assert value == 9.0
    assert [each.result(100) for each in (ended, served, served_again)] == [None] * 3
    assert "is dead: it has sent nothing for 2 s" in caplog.text


@pytest.mark.thorough
def test_a_death_without_a_replacement_ends_the_others_and_is_named(caplog):
    caplog.set_level(logging.CRITICAL)
    cluster = Cluster(2, 2, **BEATING, timeout=8.0)
    _, ended = cluster.scheduler()
    servers = [cluster.server(), cluster.server()]
    clients = [cluster.pool.submit(Client, cluster.settings(NodeRole.WORKER)) for _ in range(2)]
    clients = sorted((each.result(60) for each in clients), key=lambda client: client.rank)
    servers.sort(key=lambda server: server[0].node.rank)
    doomed = servers[1][0].node
    began = time.monotonic()
    doomed.abandon()
    named = rf"the server 1 at 127.0.0.1:{doomed.me.port} is dead: (its connection has closed|it has sent nothing)"
    with pytest.raises(RunError, match=f"pull of key 1: {named}"):
        clients[0].pull(1, vector(0))  # lives on server 1
    assert time.monotonic() - began < 7.5, "it is told at once, not when its backoff ends"
    with pytest.raises(RunError, match=f"{named}.*, and no other node has replaced it within 8 s"):
        ended.result(60)
    reason = rf"{named}.* replaced it within 8 s|server \d at .*: .*the scheduler at .* is dead"
    with pytest.raises(RunError, match=reason):
        servers[0][1].result(60)
    for client in clients:
        client.node.abandon()


@pytest.mark.thorough
def test_a_connection_that_is_opened_again_is_no_death():
    cluster = Cluster(1, 1)
    scheduler, _ = cluster.scheduler()
    server, _ = cluster.server()
    client = Client(cluster.settings(NodeRole.WORKER))
    client.init(0, vector(7))
    peer = client.node.nodes[8]
    client.node._members.sockets.connect(8, peer.host, peer.port, client.node.id)
    assert float(client.pull(0, vector(0))[0]) == 7.0
    time.sleep(RECONNECTION + 1)
    assert (server.node.deaths(), scheduler.deaths()) == ([], [])
    client.close()


def test_nobody_takes_the_id_of_a_node_unless_the_scheduler_says_so():
    """A second connection of an id waits while the first lives; not even its small messages are read."""
    cluster = Cluster(1, 1)
    cluster.scheduler()
    server, served = cluster.server()
    client = Client(cluster.settings(NodeRole.WORKER))
    client.init(0, vector(7))
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.IDENTITY, b"ps9")
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(f"tcp://127.0.0.1:{server.node.me.port}")
        socket.send(encode(Meta(head=2, request=True, simple_app=True, app=0, customer=0, timestamp=1)))
        within(40, lambda: 9 in server.node._members.sockets.incoming._held, "a held message")
        for _ in range(20):
            assert float(client.pull(0, vector(0))[0]) == 7.0
        assert not server._stopped.is_set(), "it has obeyed a forged order to stop"
        server.node._receiver.post(lambda: server.node._members.sockets.incoming.replaced(9))
        within(40, server._stopped.is_set, "the stop of the server")
    client.node.stop()
    served.result(60)


@pytest.mark.thorough
def test_a_request_whose_messages_are_given_up_is_told_at_once():
    cluster = Cluster(1, 1, resend=True, resend_timeout=0.02, resend_limit=3)
    cluster.scheduler()
    server, _ = cluster.server()
    client = Client(cluster.settings(NodeRole.WORKER))
    server.node.abandon()
    with pytest.raises(RunError, match=r"pull of key 0: messages to the server 0 at .* are not acknowledged"):
        client.pull(0, vector(0))
    client.node.abandon()


def grown(process):
    """Return by how many MiB a process has ever grown."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+)", status)[1]) / 1024


@pytest.fixture
def served():
    """Return a cluster and the process of its server."""
    cluster = Cluster(1, 1)
    settings = cluster.settings(NodeRole.SERVER)
    script = f"from hpcps.kvstore import Server\nfrom {settings.__module__} import *\nServer({settings!r}).run()"
    command = [sys.executable, "-c", script.replace("<NodeRole.SERVER: 0>", "NodeRole.SERVER")]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        yield cluster, process
        process.kill()


@pytest.mark.usefixtures("starts_processes")
def test_a_flood_of_strangers_does_not_fill_the_memory(served):
    """Large frames, messages that do not end, and small messages as fast as they go, while a run goes on."""
    identity = b"ps9"
    cluster, process = served
    scheduler, _ = cluster.scheduler()
    client = Client(cluster.settings(NodeRole.WORKER))
    client.init(0, vector(7))
    port = client.node.nodes[8].port
    before = grown(process)
    parts = {
        "large": [bytes(1 << 28)],
        "many": [bytes(1 << 16)] * 4000,
        "meta": [encode(Meta(head=0, request=True, push=True, timestamp=1)), bytes(8), bytes(1 << 28)],
        "small": [bytes(200_000)],
        "tiny": [b"x"] * 400,
    }
    with zmq.Context() as context:
        sockets = []
        for frames in list(parts.values()) * 3:
            sockets.append(context.socket(zmq.DEALER))
            sockets[-1].setsockopt(zmq.LINGER, 0)
            sockets[-1].setsockopt(zmq.IDENTITY, identity)
            sockets[-1].connect(f"tcp://127.0.0.1:{port}")
            for _ in range(1 if len(frames) > 1000 or len(frames[-1]) > 1 << 20 else 500):
                sockets[-1].send_multipart(frames, copy=False)
        open_ended = [zmtp(port, identity) for _ in range(400)]
        until = time.monotonic() + 3
        while time.monotonic() < until:
            for stranger in open_ended:
                with suppress(OSError):
                    stranger.send(b"\x01\xff" + bytes(255))
        assert float(client.pull(0, vector(0))[0]) == 7.0
        after = grown(process)
        for socket in [*sockets, *open_ended]:
            socket.close()
    client.close()
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 0, said
    assert after - before < 64, (before, after)
    assert scheduler.dropped.counts == {}


def zmtp(port, identity):
    """Return a connection whose handshake is over, and on which frames can be sent one by one."""
    ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity" + len(identity).to_bytes(4, "big") + identity
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(52, b"\0")
    stranger = socket.create_connection(("127.0.0.1", port))
    stranger.sendall(greeting + bytes([4, len(ready)]) + ready)
    stranger.setblocking(False)
    return stranger


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n".ljust(80),
        b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(52, b"\0") + b"\x04\x05hello",
    ],
)
def test_who_does_not_speak_the_protocol_is_cut_off(said):
    cluster = Cluster(1, 1)

    def job(kv):
        server = kv.node.nodes[8]
        with socket.create_connection((server.host, server.port)) as stranger:
            stranger.settimeout(30)
            stranger.sendall(said)
            with suppress(ConnectionResetError):
                while stranger.recv(4096):
                    pass
        kv.init(0, vector(7))
        return float(kv.pull(0, vector(0))[0])

    assert cluster.run(job) == [7.0]
    assert cluster.nodes[1].dropped.counts == {"foreign": 1}


def test_a_list_of_other_nodes_is_told_at_once():
    cluster = Cluster(1, 1)
    _, ended = cluster.scheduler()
    cluster.server()
    worker = cluster.pool.submit(Client, cluster.settings(NodeRole.WORKER, servers=2))
    began = time.monotonic()
    with pytest.raises(LaunchError, match=r"worker at .* cannot join: .* sent a list of 3 nodes where there are 4; "):
        worker.result(100)
    assert time.monotonic() - began < 20
    ended.cancel()


@pytest.mark.thorough
def test_one_node_too_many_is_told_at_once():
    cluster = Cluster(1, 1, timeout=30.0)
    _, ended = cluster.scheduler()
    workers = [cluster.pool.submit(Client, cluster.settings(NodeRole.WORKER)) for _ in range(2)]
    began = time.monotonic()
    within(40, lambda: any(worker.done() for worker in workers), "the refusal of a worker")
    assert time.monotonic() - began < 20
    refused, first = sorted(workers, key=lambda worker: not worker.done())
    with pytest.raises(
        LaunchError, match=r"worker at .* cannot join: .* refuses it: .* is one more than the 1 expected"
    ):
        refused.result()
    cluster.server()
    client = first.result(60)
    with pytest.raises(LaunchError, match="all nodes have registered already; it replaces the first node of its role"):
        Client(cluster.settings(NodeRole.WORKER, timeout=3.0))
    client.close()
    ended.result(60)


def test_who_does_not_come_is_named():
    cluster = Cluster(1, 2, timeout=1.0)
    _, ended = cluster.scheduler()
    worker = cluster.worker(lambda kv: None)
    with pytest.raises(LaunchError, match="not registered are 1 of 1 servers and 1 of 2 workers"):
        ended.result(100)
    with pytest.raises(LaunchError, match="has sent no list of nodes; it sends one when 1 servers and 2 workers"):
        worker.result(100)


def test_a_port_that_is_taken_is_named():
    cluster = Cluster()
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.bind(f"tcp://127.0.0.1:{cluster.common['root_port']}")
        with pytest.raises(LaunchError, match=r"cannot listen at 127.0.0.1:.*in use; set another"):
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
        return float(kv.pull(0, vector(0))[0]), kv.node.dropped.counts

    results = [each.result(100) for each in [cluster.worker(job), cluster.worker(job)]]
    assert [value for value, _ in results] == [3.0, 3.0]
    assert (ended.result(100), served.result(100)) == (None, None)
    for counts in (scheduler.dropped.counts, server.node.dropped.counts, *(counts for _, counts in results)):
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
        within(
            40,
            lambda: node.dropped.counts and 8 in node._members.sockets.incoming._held,
            "a dropped and a held message",
        )
        host, port = "127.0.0.1", cluster.common["root_port"]
        everyone = (
            NodeInfo(NodeRole.WORKER, host, worker.port, 9),
            NodeInfo(NodeRole.SERVER, host, port, 8),
            NodeInfo(NodeRole.SCHEDULER, host, port, 1),
        )
        speakers[b"ps1"].send(encode(Meta(control=Control(Command.ADD_NODE, everyone), timestamp=0)))
        speakers[b"ps1"].send(encode(Meta(control=Control(Command.BARRIER), app=0, customer=0, timestamp=1)))
        within(40, lambda: delivered, "the delivery of the messages")
        node.abandon()
        for socket in speakers.values():
            socket.close()
    started.exception(100)
    assert [each.meta.body for each in delivered] == [b"ps8"]
    assert node.dropped.counts == {"foreign": 1}


def test_mutated_messages_of_a_known_worker_change_nothing(caplog):
    """Its frames are read and its requests served, but no node ends, and the value of another key stays."""
    source, value = random.Random(7), np.arange(64, dtype=np.float32)
    cluster = Cluster(1, 2)
    scheduler, ended = cluster.scheduler()
    server, served = cluster.server()
    data = [bytes(frame) for frame in Pairs.one(5, np.zeros(4, np.uint8)).frames()]

    def is_order(frame):
        """Whether a node must follow it, as it comes from a known worker."""
        try:
            meta = decode(frame)
        except MalformedFrameError:
            return False
        return meta.simple_app or (meta.control is not None and meta.control.command == Command.BARRIER)

    def job(kv):
        kv.init(7, value)
        kv.barrier()
        if kv.rank == 0:
            for frame in (mutated(source) for _ in range(5000)):
                if not is_order(frame):
                    frames = mutated_data(source, data) if source.random() < 0.7 else []
                    kv.node._members.sockets.send(source.choice((1, 8)), [frame, *frames])
            # An answer to a forged request must not be taken for the answer to the next one.
            kv.node._members._timestamp += 1 << 20
            # Messages are read in order: when this is answered, all before it were read.
            kv.pull(7, np.empty_like(value))
        kv.barrier()
        return kv.pull(7, np.empty_like(value)).tolist()

    assert [each.result(100) for each in [cluster.worker(job), cluster.worker(job)]] == [value.tolist()] * 2
    assert (ended.result(60), served.result(60)) == (None, None)
    assert min(sum(node.dropped.counts.values()) for node in (scheduler, server.node)) > 400
    assert len(caplog.records) < 400
