"""Our nodes and MXNet's C++ ones in one cluster, in every mixture; `make .venv-mxnet/.ready` makes theirs."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from threads import free_port

ROOT = Path(__file__).parents[2]
FOLDER = Path(__file__).parent
SIZE = 1_200_001  # above the split, and no multiple of the number of servers


@pytest.fixture(scope="module")
def mxnet():
    """Return the Python that has MXNet."""
    if (ROOT / ".venv-mxnet/.ready").exists():
        return str(ROOT / ".venv-mxnet/bin/python")
    missing = ".venv-mxnet is missing: `make test` makes it"
    if "CI" in os.environ:
        pytest.fail(missing)
    pytest.skip(missing)


def play(mxnet, scheduler, servers, workers, **variables):
    """Run a cluster and return what its workers printed, by rank.

    Args:
        mxnet: the Python that has MXNet.
        scheduler: who is the scheduler: `c` for C++, `o` for ours.
        servers: who are the servers, a letter for each.
        workers: who are the workers.
        variables: for the environment of all.
    """
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "DMLC_NUM_SERVER": str(len(servers)),
        "DMLC_NUM_WORKER": str(len(workers)),
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
        "PS_TIMEOUT": "60",
        **variables,
    }
    pythons = {"c": mxnet, "o": sys.executable}
    node = {"c": ["-c", "import mxnet"], "o": ["-m", "hpcps.kvstore"]}
    work = {"c": [str(FOLDER / "mxnet_worker.py"), str(SIZE)], "o": [str(FOLDER / "our_worker.py"), str(SIZE)]}
    cast = [(scheduler, "scheduler", node), *((kind, "server", node) for kind in servers)]
    cast += [(kind, "worker", work) for kind in workers]
    processes = []
    try:
        for kind, role, script in cast:
            variables = {**environment, "DMLC_ROLE": role}
            command = [pythons[kind], *script[kind]]
            processes.append(
                subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            )
        outputs = [process.communicate(timeout=120) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    failed = [(cast[at][:2], outputs[at]) for at, process in enumerate(processes) if process.returncode]
    assert not failed, failed
    reports = [json.loads(line) for out, _ in outputs for line in out.splitlines() if line.startswith("{")]
    return sorted(reports, key=lambda report: report["rank"])


@pytest.mark.parametrize(
    ("scheduler", "servers", "workers", "variables"),
    [
        ("c", "c", "o", {}),
        ("o", "o", "c", {}),
        ("o", "o", "o", {}),
        ("c", "oc", "co", {}),
        ("o", "co", "oc", {}),
        ("o", "ooo", "cc", {"PS_HEARTBEAT_INTERVAL": "1", "PS_HEARTBEAT_TIMEOUT": "30"}),
        ("c", "cc", "oo", {"PS_HEARTBEAT_INTERVAL": "1", "PS_HEARTBEAT_TIMEOUT": "30"}),
        ("o", "co", "co", {"PS_RESEND": "1", "PS_RESEND_TIMEOUT": "500"}),
        ("c", "o", "c", {"PS_RESEND": "1", "PS_RESEND_TIMEOUT": "500"}),
    ],
)
def test_ours_and_cpp_nodes_work_together(mxnet, scheduler, servers, workers, variables):
    reports = play(mxnet, scheduler, servers, workers, **variables)
    count = len(workers)
    total = count * (count + 1) / 2
    assert reports == [
        {"rank": rank, "workers": count, "first": [[2.0] * 4] * 3, "sum": [[total] * 4] * 3, "wrong": 0}
        for rank in range(count)
    ]
