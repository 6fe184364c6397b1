"""Our nodes and MXNet's C++ ones in one cluster, in every mixture; `make .venv-mxnet/.ready` makes theirs."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from running_processes import free_port

pytestmark = pytest.mark.usefixtures("starts_processes")

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
LEAVING = "Check failed: ready_: call Start() first"
"""What a C++ node may die of that resends something while it leaves, on a busy machine; all is done by then."""
BEATING = {"PS_HEARTBEAT_INTERVAL": "1", "PS_HEARTBEAT_TIMEOUT": "30"}
RESENDING = {"PS_RESEND": "1", "PS_RESEND_TIMEOUT": "500"}
SIZE = 1_200_001  # above the split, and no multiple of the number of servers


@pytest.fixture(scope="module")
def mxnet():
    """Return the Python that has MXNet."""
    if (ROOT / ".venv-mxnet/.ready").exists():
        return str(ROOT / ".venv-mxnet/bin/python")
    missing = ".venv-mxnet is missing: `make test-all` makes it"
    if "CI" in os.environ:
        pytest.fail(missing)
    pytest.skip(missing)


class Processes:
    """A cluster of processes.

    Args:
        mxnet: the Python that has MXNet.
        servers: how many servers there are.
        workers: how many workers there are.
        variables: for the environment of all.
    """

    def __init__(self, mxnet, servers, workers, **variables):
        self._environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
            "DMLC_NUM_SERVER": str(servers),
            "DMLC_NUM_WORKER": str(workers),
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": str(free_port()),
            "DMLC_NODE_HOST": "127.0.0.1",
            "PS_TIMEOUT": "60",
            **variables,
        }
        self._pythons = {"c": mxnet, "o": sys.executable}
        self._processes = []

    def __enter__(self):
        return self

    def __exit__(self, *error):
        for _, process in self._processes:
            process.kill()
            process.communicate()

    def start(self, kind, role, script):
        """Start a node: `c` for a C++ one, `o` for one of ours."""
        variables = {**self._environment, "DMLC_ROLE": role}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen([self._pythons[kind], *script], env=variables, **pipes)
        self._processes.append(((kind, role), process))
        return process

    def serve(self, kind, role):
        """Start a scheduler or server."""
        return self.start(kind, role, {"c": ["-c", "import mxnet"], "o": ["-m", "hpcps.kvstore"]}[kind])

    def reports(self):
        """Wait for all, and return what the workers printed, by rank."""
        outputs = [process.communicate(timeout=120) for _, process in self._processes]
        failed = [
            (who, out)
            for (who, process), out in zip(self._processes, outputs, strict=True)
            if process.returncode and not (who[0] == "c" and LEAVING in out[1])
        ]
        assert not failed, failed
        found = [json.loads(line) for out, _ in outputs for line in out.splitlines() if line.startswith("{")]
        return sorted(found, key=lambda report: report["rank"])


@pytest.mark.parametrize(
    ("scheduler", "servers", "workers", "variables"),
    [
        ("c", "oc", "co", {}),
        pytest.param("c", "cc", "oo", BEATING, marks=pytest.mark.soak),
        ("o", "co", "co", RESENDING),
    ],
)
def test_ours_and_cpp_nodes_work_together(mxnet, scheduler, servers, workers, variables):
    count = len(workers)
    with Processes(mxnet, len(servers), count, **variables) as cluster:
        for kind, role in [(scheduler, "scheduler"), *((kind, "server") for kind in servers)]:
            cluster.serve(kind, role)
        for kind in workers:
            name = {"c": "mxnet_worker.py", "o": "our_worker.py"}[kind]
            cluster.start(kind, "worker", [str(FOLDER / name), str(SIZE)])
        reports = cluster.reports()
    total = count * (count + 1) / 2
    assert reports == [
        {"rank": rank, "workers": count, "first": [[2.0] * 4] * 3, "sum": [[total] * 4] * 3, "wrong": 0}
        for rank in range(count)
    ]


def test_a_worker_that_was_killed_is_replaced_among_cpp_nodes(mxnet):
    beating = {"PS_HEARTBEAT_INTERVAL": "1", "PS_HEARTBEAT_TIMEOUT": "2"}
    with Processes(mxnet, 1, 2, **beating) as cluster:
        cluster.serve("o", "scheduler")
        cluster.serve("c", "server")
        mortal = [str(FOLDER / "mortal_worker.py")]
        with Processes(mxnet, 1, 2) as doomed:
            doomed._environment = cluster._environment
            dying = doomed.start("o", "worker", [*mortal, "dies"])
            cluster.start("o", "worker", [*mortal, "stays"])
            assert dying.wait(60) == -signal.SIGKILL
            rank = json.loads(dying.communicate()[0])["rank"]
        cluster.start("o", "worker", [*mortal, "returns"])
        reports = cluster.reports()
    assert reports == [
        {"rank": each, "recovered": each == rank, "before": [7.0] * 4, "after": [4.0] * 4} for each in range(2)
    ]
