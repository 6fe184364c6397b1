"""The key-value store of our nodes: where values live, and what becomes of them."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from running_processes import free_port, within
from threads import Cluster

from hpcps.errors import LaunchError, RunError
from hpcps.kvstore import Client, Server
from hpcps.kvstore.protocol import REQUEST, dtype_of, head_of, parts, range_start
from hpcps.transport.pslite.meta import Meta, NodeRole

ROOT = Path(__file__).parents[2]


def test_ranges_are_equal_parts_of_all_keys():
    assert [range_start(server, 3) for server in range(3)] == [0, (2**64 - 1) // 3, (2**64 - 1) // 3 * 2]


@pytest.mark.parametrize("servers", [1, 2, 3, 7])
def test_a_small_array_lives_on_one_server_and_a_large_one_on_all(servers):
    for key in (0, 1, 5, 123):
        [part] = parts(key, 999_999, servers)
        assert part.server == key * 9973 % servers
        assert (part.key, part.start, part.stop) == (range_start(part.server, servers) + key, 0, 999_999)
        size = 1_000_000 + key
        large = parts(key, size, servers)
        cuts = [int(Fraction(size * each, servers) + Fraction(1, 2)) for each in range(servers + 1)]
        assert [(part.start, part.stop) for part in large] == list(pairwise(cuts))
        assert [part.key for part in large] == [range_start(each, servers) + key for each in range(servers)]


def test_heads_are_as_mxnet_pairs_them():
    assert [head_of(np.dtype(name)) for name in ("float32", "float64", "float16", "int64")] == [0, 2, 5, 27]
    assert dtype_of(2) == np.float64
    assert dtype_of(1) is None, "a row-sparse push"
    with pytest.raises(ValueError, match="complex64 cannot be sent; these can: float32"):
        head_of(np.dtype("complex64"))
    with pytest.raises(ValueError, match="arrays of >f4 cannot be sent"):
        head_of(np.dtype("float32").newbyteorder(">"))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "uint8", "int8", "int64"])
def test_the_sum_of_all_pushes_becomes_the_value(dtype):
    def job(kv):
        shape = (3, 5)
        kv.init(3, np.arange(15, dtype=dtype).reshape(shape))
        first = kv.pull(3, np.empty(shape, dtype))
        kv.push(3, np.full(shape, kv.rank + 1, dtype))
        return first, kv.pull(3, np.empty(shape, dtype))

    for first, second in Cluster(1, 2).run(job):
        np.testing.assert_array_equal(first, np.arange(15).reshape(3, 5))
        np.testing.assert_array_equal(second, np.full((3, 5), 3))


def test_large_arrays_are_split_and_come_back_whole():
    value = np.arange(1_000_003, dtype=np.float32)

    def job(kv):
        kv.init(1, value)
        first = kv.pull(1, np.empty_like(value))
        kv.push(1, value * (kv.rank + 1))
        return np.array_equal(first, value), np.array_equal(kv.pull(1, np.empty_like(value)), 3 * value)

    cluster = Cluster(3, 2)
    assert cluster.run(job) == [(True, True)] * 2


def test_the_sum_does_not_depend_on_who_comes_first():
    """(1e8 + -1e8) + 1 is 1, and 1e8 + (-1e8 + 1) is 0 in float32: the order of ranks it is, always."""
    values = [1e8, -1e8, 1.0]
    turn = [threading.Event() for _ in range(3)]

    def job(kv):
        sums = []
        kv.init(0, np.zeros(1, np.float32))
        for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
            kv.barrier()
            place = order.index(kv.rank)
            if place:
                turn[place].wait(60)
            request = kv.start_push(0, np.array([values[kv.rank]], np.float32))
            kv.node.send(8, Meta(head=3, request=True, simple_app=True, timestamp=kv.node.timestamp()))
            if place < 2:
                turn[place + 1].set()
            request.wait()
            sums.append(float(kv.pull(0, np.zeros(1, np.float32))[0]))
            kv.barrier()
            turn[place].clear()
        return sums

    assert Cluster(1, 3).run(job) == [[1.0, 1.0, 1.0]] * 3


def test_a_worker_that_is_ahead_waits_for_its_turn():
    def entry_job(kv):
        kv.init(0, np.zeros(2, np.float32))
        kv.barrier()
        if kv.rank == 0:
            requests = [kv.start_push(0, np.full(2, 10.0 * (turn + 1), np.float32)) for turn in range(3)]
            kv.barrier()
        else:
            kv.barrier()
            requests = [kv.start_push(0, np.full(2, turn + 1.0, np.float32)) for turn in range(3)]
        for request in requests:
            request.wait()
        return float(kv.pull(0, np.zeros(2, np.float32))[0])

    assert Cluster(1, 2).run(entry_job) == [33.0, 33.0]


def test_an_update_of_ones_own_changes_the_value():
    cluster = Cluster(1, 2)
    seen = []

    def update(key, pushed, stored):
        seen.append(key)
        stored -= 0.5 * pushed

    cluster.scheduler()
    cluster.server(update)

    def job(kv):
        kv.init(4, np.full(3, 10, np.float32))
        pulled = []
        for _ in range(3):
            kv.push(4, np.full(3, 2.0, np.float32))
            pulled.append(float(kv.pull(4, np.zeros(3, np.float32))[0]))
            kv.barrier()
        return pulled

    jobs = [cluster.worker(job), cluster.worker(job)]
    assert [each.result(100) for each in jobs] == [[8.0, 6.0, 4.0]] * 2
    assert seen == [4, 4, 4]


@pytest.mark.sample(1)
@pytest.mark.parametrize("sync", [False, True])
def test_a_large_value_is_pulled_whole_while_others_change_it(sync):
    """All elements of a value are equal after each push, and so must those of each pull be."""
    size = 3_000_000
    cluster = Cluster(1, 3)
    cluster.scheduler()
    cluster.server(lambda key, pushed, stored: np.add(stored, pushed, out=stored))

    def job(kv):
        kv.init(0, np.zeros(size, np.float32))
        out, torn = np.empty(size, np.float32), 0
        ones = np.ones(size, np.float32)
        for _ in range(12):
            pushed = kv.start_push(0, ones) if sync or kv.rank == 0 else None
            pulled = kv.start_pull(0, out)
            for request in filter(None, (pulled, pushed)):
                request.wait()
            torn += bool((out != out[0]).any())
        return torn

    jobs = [cluster.worker(job, sync=sync) for _ in range(3)]
    assert [each.result(100) for each in jobs] == [0, 0, 0]


@pytest.mark.sample(1)
@pytest.mark.parametrize(("sync", "split_from"), [(True, 1000), (False, 100_000)])
def test_a_pull_is_of_one_version_as_the_documentation_says(sync, split_from):
    """Of a value on two servers: in sync mode after the own push was answered. Of one on one server: always."""
    size = 50_000
    cluster = Cluster(2, 2)
    cluster.scheduler()
    for _ in range(2):
        cluster.server(lambda key, pushed, stored: np.add(stored, pushed, out=stored))

    def job(kv):
        kv.init(0, np.zeros(size, np.float32))
        ones, out, mixed = np.ones(size, np.float32), np.empty(size, np.float32), 0
        for _ in range(100):
            kv.push(0, ones)
            kv.pull(0, out)
            mixed += bool((out != out[0]).any())
        return mixed

    jobs = [cluster.worker(job, sync=sync, split_from=split_from) for _ in range(2)]
    assert [each.result(100) for each in jobs] == [0, 0]


def push_as_mxnet(kv, key, value):
    """Push without `init`, as a worker of MXNet may: the first push sets the value."""
    kv._push(key, value, 0, REQUEST).wait()


def test_a_push_without_init_is_refused_at_once():
    """Of a key that no worker knows, of one that only the others know, and of one with a value."""

    def job(kv):
        kv.init(0, np.zeros(4, np.float32))
        for push in (kv.push, kv.start_push):
            with pytest.raises(ValueError, match=r"key 1 has no first value: all workers call init\(1, array\) before"):
                push(1, np.ones(4, np.float32))
        if kv.rank == 1:
            kv.barrier()
            with pytest.raises(ValueError, match="key 2 has no first value"):
                kv.push(2, np.ones(4, np.float32))
            assert kv.pull(2, np.zeros(4, np.float32)).tolist() == [1.0] * 4
        else:
            kv.init(2, np.ones(4, np.float32))
        kv.barrier()
        with pytest.raises(RunError, match="no such key"):
            kv.pull(1, np.zeros(4, np.float32))

    Cluster(2, 2, timeout=20.0).run(job)


def test_a_value_of_another_shape_is_refused_at_once():
    def job(kv):
        kv.init(0, np.zeros((3, 4), np.float32))
        for call in (kv.push, kv.pull):
            with pytest.raises(ValueError, match=r"12 of float32 of the shape \[3, 4\], not 12 .* shape \[4, 3\]"):
                call(0, np.zeros((4, 3), np.float32))

    Cluster(2, 1).run(job)


def test_what_is_wrong_is_said():
    def job(kv):
        kv.init(0, np.zeros(4, np.float32))
        said = []
        push_as_mxnet(kv, 2, np.zeros(4, np.float32))
        for action in (
            lambda: kv.pull(1, np.zeros(4, np.float32)),
            lambda: kv.pull(2, np.zeros(5, np.float32)),
            lambda: kv.pull(0, np.zeros((4, 4), np.float32)[:, 0]),
            lambda: kv.push(0, np.zeros(4, np.complex64)),
        ):
            with pytest.raises((RunError, ValueError)) as caught:
                action()
            said.append(str(caught.value))
        return said

    [said] = Cluster(1, 1).run(job)
    assert "pull of key 1: the server 0 at 127.0.0.1" in said[0]
    assert said[0].endswith("has no such key")
    assert said[1].endswith("has 16 bytes, not 20")
    assert "contiguous and writable" in said[2]
    assert "complex64" in said[3]


VALUE = np.full(4, 7, np.float32)
REFUSED = {
    **{rf"a key is a whole number from 0 to \d+, not {key!r}$": (key, VALUE) for key in (-1, 2**63, 1.5, "w", None)},
    "the value of key 3 is 4 of float32, not 5 of float32": (3, np.zeros(5, np.float32)),
    "the value of key 3 is 4 of float32, not 4 of int32": (3, np.zeros(4, np.int32)),
    # Never touched, so it takes no memory.
    r"2147483648 of them on one server, .* use more servers": (5, np.empty(2**32, np.uint8)),
    **{
        f"key 5 must be a numpy array, not .* {type(value).__name__}": (5, value)
        for value in ([1.0], 3.0, np.float32(3), None)
    },
}


def test_what_no_server_has_a_place_for_is_refused_at_once():
    def job(kv):
        kv.init(np.int64(3), VALUE)
        for action in (kv.init, kv.push, kv.pull):
            for message, (key, value) in REFUSED.items():
                with pytest.raises(ValueError, match=message):
                    action(key, value)
        return kv.pull(3, np.zeros(4, np.float32)).tolist()

    assert Cluster(2, 1).run(job) == [VALUE.tolist()]


def test_a_push_of_another_size_is_refused_by_the_server_and_the_value_stays():
    def job(kv):
        push_as_mxnet(kv, 0, np.full(4, 7, np.float32))  # so the client does not know what the server has
        with pytest.raises(RunError, match=r"push of key 0: the server 0 at .* a push of 5 of float32 .* has 4 of flo"):
            push_as_mxnet(kv, 0, np.zeros(5, np.float32))
        return kv.pull(0, np.zeros(4, np.float32)).tolist()

    assert Cluster(1, 1).run(job) == [[7.0] * 4]


@pytest.mark.parametrize(
    ("first", "other", "size"),
    [
        (np.full(4, 7, np.float32), np.zeros(5, np.float32), "5 of float32"),
        (np.full(4, 7, np.float32), np.zeros(2), "2 of float64"),
        (np.full(40, 7, np.float32), np.zeros(30, np.float32), "30 of float32"),
        (np.full(4, 7, np.float32), np.zeros(30, np.float32), "30 of float32"),
        (np.full(40, 7, np.float32), np.zeros(4, np.float32), "4 of float32"),
        (np.full(12, 7, np.float32), np.zeros((4, 3), np.float32), r"12 of float32 of the shape \[4, 3\]"),
        (np.full(40, 7, np.float32), np.zeros((40, 1), np.float32), r"40 of float32 of the shape \[40, 1\]"),
        (np.full(1, 7, np.float32), np.zeros((), np.float32), r"1 of float32 of the shape \[\]"),
    ],
)
def test_a_worker_whose_value_differs_from_that_of_rank_0_learns_it_from_init(first, other, size):
    def job(kv):
        if kv.rank == 0:
            kv.init(1, first)
        else:
            reason = rf"key 1: .* is {size}, but the worker 0 at 127\.0\.0\.1:\d+ .* to {first.size} of float32"
            with pytest.raises(ValueError, match=reason):
                kv.init(1, other)
            with pytest.raises(ValueError, match=f"the value of key 1 is {first.size} of float32, not {size}"):
                kv.push(1, other)
        kv.barrier()
        return kv.pull(1, np.zeros(first.size, np.float32)).tolist()

    assert Cluster(2, 2).run(job, split_from=20) == [[7.0] * first.size] * 2


def test_a_worker_that_splits_a_value_otherwise_learns_it_from_init():
    cluster = Cluster(2, 2)
    cluster.scheduler()
    for _ in range(2):
        cluster.server()

    def job(kv):
        if kv.rank == 0:
            kv.init(1, np.full(40, 7, np.float32))
        else:
            with pytest.raises(ValueError, match=r"key 1: .* 40 of float32, .* split .*: split_from must be the same"):
                kv.init(1, np.zeros(40, np.float32))
        kv.barrier()

    # Whoever comes first has rank 0.
    jobs = [cluster.worker(job, split_from=split) for split in (20, 50)]
    for each in jobs:
        each.result(100)


def test_init_names_the_worker_whose_push_gave_a_key_its_value():
    """A push of a key without a value sets it, as on MXNet's servers."""

    def job(kv):
        kv.barrier()
        if kv.rank == 1:
            push_as_mxnet(kv, 3, np.zeros(6, np.float32))
        kv.barrier()
        if kv.rank == 0:
            with pytest.raises(RunError, match=r"key 3 has its first value already, from the worker 1 at 127"):
                kv.init(3, np.zeros(6, np.float32))
            kv.barrier()
        else:
            with pytest.raises(ValueError, match=r"is 7 of float32, but the worker 1 at 127\S* .* to 6 of float32"):
                kv.init(3, np.zeros(7, np.float32))

    Cluster(1, 2).run(job)


@pytest.mark.parametrize("sync", [True, False])
def test_a_second_first_value_is_refused_at_once(sync):
    def job(kv):
        kv.init(0, np.full(4, 7, np.float32))
        with pytest.raises(ValueError, match="key 0 has its first value already; push changes a value"):
            kv.init(0, np.full(4, 8, np.float32))
        if kv.rank == 0:
            push_as_mxnet(kv, 1, np.ones(4, np.float32))
            with pytest.raises(RunError, match=r"push of key 1: .* refuses it: key 1 has its first value already"):
                kv.init(1, np.ones(4, np.float32))
        return kv.pull(0, np.zeros(4, np.float32)).tolist()

    assert Cluster(1, 2).run(job, sync=sync) == [[7.0] * 4] * 2


def test_a_client_may_be_closed_twice_and_says_afterwards_that_it_has_left():
    def job(kv):
        kv.close()
        kv.close()
        for action in (lambda: kv.pull(0, np.zeros(4)), kv.barrier):
            with pytest.raises(RunError, match=r"worker 0 at .* has left$"):
                action()

    Cluster(1, 1).run(job)


def test_a_client_is_a_worker_and_a_server_a_server():
    cluster = Cluster()
    with pytest.raises(LaunchError, match="a client is a worker, but DMLC_ROLE is server"):
        Client(cluster.settings(NodeRole.SERVER))
    with pytest.raises(LaunchError, match="this is a server, but DMLC_ROLE is worker"):
        Server(cluster.settings(NodeRole.WORKER))


@pytest.mark.usefixtures("starts_processes")
def test_the_example_of_the_documentation():
    text = (ROOT / "docs/how-to/kvstore.md").read_text()
    script = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]
    variables = re.search(r"export (DMLC.*)", text)[1].replace("9090", str(free_port()))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PS_TIMEOUT": "30"}
    environment |= dict(each.split("=") for each in variables.split())
    processes = []
    for role in ("scheduler", "server", "worker", "worker"):
        command = ["-m", "hpcps.kvstore"] if role != "worker" else ["-c", script]
        node = {**environment, "DMLC_ROLE": role}
        processes.append(subprocess.Popen([sys.executable, *command], env=node, stdout=subprocess.PIPE, text=True))
    printed = [process.communicate(timeout=60)[0] for process in processes]
    assert [process.returncode for process in processes] == [0] * 4
    assert sorted(printed) == ["", "", "0 3.0\n", "1 3.0\n"]


@pytest.mark.usefixtures("starts_processes")
def test_a_wrong_environment_is_an_error_for_people():
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DMLC_ROLE": "boss"}
    done = subprocess.run(
        [sys.executable, "-m", "hpcps.kvstore"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.startswith("hpcps: the environment of a ps-lite node is wrong:")
    assert "Traceback" not in done.stderr


def test_ctrl_c_ends_a_node_that_waits_without_a_traceback():
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DMLC_ROLE": "scheduler", "DMLC_NUM_SERVER": "1"}
    environment |= {"DMLC_NUM_WORKER": "1", "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(port)}
    # What runs in the background of a shell ignores Ctrl-C, and so would what it starts.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "hpcps.kvstore"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as node:
        try:
            within(60, lambda: listens(port), "a node that listens")
            node.send_signal(signal.SIGINT)
            said = node.communicate(timeout=60)[1]
        finally:
            node.kill()
    assert (node.returncode, said) == (130, "")


def listens(port):
    """Whether somebody does, of this machine."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
