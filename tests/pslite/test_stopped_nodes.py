"""Nodes that are stopped or killed: the other processes end in time and name the node."""

import os
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from threading import Event

import numpy as np
import pytest
from running_processes import free_port
from threads import Cluster

from hpcps.errors import RunError
from hpcps.kvstore.protocol import REQUEST

pytestmark = pytest.mark.usefixtures("starts_processes")

ROOT = Path(__file__).parents[2]
BEATING = {"PS_HEARTBEAT_INTERVAL": "1", "PS_HEARTBEAT_TIMEOUT": "3"}

WORKER = """
import sys, time
import numpy as np
from hpcps.errors import RunError
from hpcps.kvstore import Client

kv = Client()
value = np.ones(40, np.float32)
for key in range(2):
    kv.init(key, value)
print(f"rank {kv.rank}", flush=True)
try:
    if sys.argv[1] == "barrier":
        kv.barrier()
    while True:
        for key in range(2):
            kv.push(key, value)
            kv.pull(key, value)
except RunError as error:
    kv.node.abandon()
    sys.exit(f"hpcps: {error}")
"""


@pytest.fixture
def start():
    """Return a function that starts a node, and end all of them."""
    nodes = []
    common = {"PYTHONPATH": str(ROOT), "DMLC_PS_ROOT_URI": "127.0.0.1", "DMLC_PS_ROOT_PORT": str(free_port())}

    def node(role, *command, **variables):
        environment = {**os.environ, **common, "DMLC_ROLE": role, **variables}
        command = command or ("-m", "hpcps.kvstore")
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        nodes.append(subprocess.Popen([sys.executable, *command], env=environment, **pipes))
        return nodes[-1]

    yield node
    for each in nodes:
        each.kill()
        print(*each.communicate())


def ready(worker):
    """Wait until a worker has a rank, and return it."""
    assert select.select([worker.stdout], [], [], 120)[0], "a node did not start: see what the others print"
    return int(worker.stdout.readline().split()[1])


def test_workers_end_within_seconds_after_a_server_was_stopped_and_name_it(start):
    variables = {"DMLC_NUM_SERVER": "2", "DMLC_NUM_WORKER": "2", **BEATING}
    start("scheduler", **variables)
    servers = [start("server", PORT=str(free_port()), **variables) for _ in range(2)]
    workers = [start("worker", "-c", WORKER, what, **variables) for what in ("push", "barrier")]
    for worker in workers:
        ready(worker)
    time.sleep(1.0)
    servers[1].send_signal(signal.SIGSTOP)
    began = time.monotonic()
    said = [worker.communicate(timeout=60)[1] for worker in workers]
    assert time.monotonic() - began < 20, "not PS_TIMEOUT, which is 600 s"
    for worker, text in zip(workers, said, strict=True):
        assert worker.returncode == 1
        assert "is dead: it has sent nothing for 3 s" in text
        assert text.count("the server ") == 1
        assert "Traceback" not in text
    servers[1].send_signal(signal.SIGCONT)


def test_a_worker_whose_peer_was_killed_names_it_and_not_the_server(start):
    variables = {"DMLC_NUM_SERVER": "1", "DMLC_NUM_WORKER": "2", "PS_TIMEOUT": "8"}
    start("scheduler", **variables)
    start("server", **variables)
    workers = {}
    for worker in [start("worker", "-c", WORKER, "push", **variables) for _ in range(2)]:
        workers[ready(worker)] = worker
    workers[1].kill()
    text = workers[0].communicate(timeout=60)[1]
    blamed = re.findall(r"the (\w+ \d) at \S+ is dead: its connection has closed", text)
    assert blamed[0] == "worker 1", text


def test_closing_waits_for_an_open_push():
    cluster = Cluster(1, 2)
    cluster.scheduler()
    cluster.server()
    closing = Event()
    pulled = np.zeros(2, np.float32)

    def job(kv):
        kv.init(0, np.zeros(2, np.float32))
        if kv.rank == 0:
            # The answer comes only after the push of the other worker, and the value only after both.
            pushed = kv.start_push(0, np.ones(2, np.float32))
            closing.set()
            return pushed
        closing.wait(60)
        time.sleep(0.5)
        kv.push(0, np.ones(2, np.float32))
        kv.start_pull(0, pulled)
        return None

    jobs = [cluster.worker(job) for _ in range(2)]
    (pushed,) = filter(None, (each.result(60) for each in jobs))
    pushed.wait()  # it has its answer
    assert pulled.tolist() == [2.0, 2.0]


def test_closing_says_which_push_has_no_answer():
    cluster = Cluster(1, 2, timeout=3.0)
    cluster.scheduler()
    cluster.server()

    def job(kv):
        kv.init(5, np.zeros(2, np.float32))
        if kv.rank == 0:
            kv.start_push(5, np.ones(2, np.float32))
        return kv.rank

    said = []
    for each in [cluster.worker(job) for _ in range(2)]:
        with pytest.raises(RunError) as caught:
            each.result(60)
        said.append(str(caught.value))
    assert any(
        text.startswith("push of key 5: no answer within 3 s from the server 0 at") and "all workers have" in text
        for text in said
    ), said


def test_closing_says_which_push_was_refused_unless_it_was_reported():
    cluster = Cluster(1, 1)
    cluster.scheduler()
    _, served = cluster.server()

    def job(kv):
        kv._push(0, np.ones(4, np.float32), 0, REQUEST).wait()  # as a worker of MXNet: the client knows no size
        with pytest.raises(RunError, match="a push of 6 of float32"):
            kv._push(0, np.ones(6, np.float32), 0, REQUEST).wait()
        kv._push(0, np.ones(5, np.float32), 0, REQUEST)

    with pytest.raises(RunError, match=r"^push of key 0: the server 0 at .* a push of 5 of float32 for key 0[^;]*$"):
        cluster.worker(job).result(60)
    assert served.result(60) is None, "it was stopped all the same"
