"""`hpcps launch` on several hosts, within a job of PBS."""

import re
import subprocess

import pytest
from cluster import make_cluster
from environments import documented_job, interpreter

from hpcps.records.files import read_lines
from hpcps.records.status import SweepProgress

pytestmark = pytest.mark.usefixtures("starts_processes")

SCRIPT = """
import os, socket, sys
import numpy as np
from hpcps.session.ending import ScriptEnding
from hpcps.session.join import join_launch
from hpcps.session.tensors import Declaration
session = join_launch()
ending = ScriptEnding(session)
def exchange(name):
    tensor = session.declare(Declaration(name, "float32", ((50_000,),), "sum"))
    target = np.zeros(200_000, np.uint8)
    session.wait(session.start(tensor, [np.full(50_000, session.rank + 1.0, np.float32).view(np.uint8)], [target]))
    return target.view(np.float32)
names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
# One write: the output of processes is not buffered.
sys.stdout.write(" ".join(["at", socket.gethostname(), *(os.environ[name] for name in names)]) + "\\n")
assert (exchange("a") == 6).all()
if session.rank == 1 and sys.argv[1] == "raise":
    raise ValueError("boom")
exchange("fc.weight")
"""


def test_a_script_on_the_hosts_of_a_job(tmp_path):
    """Every process runs where it should, and the first one that fails is named with its host."""
    cluster = make_cluster(tmp_path, hosts=2)
    (tmp_path / "nodefile").write_text("node1\nnode1\nnode2\nnode2\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    python = interpreter("mpich")
    command = [python, "-m", "hpcps", "launch", "-n", "3", "--servers", "1", "--hostfile", "nodefile"]
    done = subprocess.run(
        [*cluster.enter, *command, python, "train.py", "raise"],
        env=cluster.of_job, cwd=tmp_path, capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    (status,) = SweepProgress(list(tmp_path.glob("results/train/runs/*"))).poll()
    assert done.returncode == 1
    assert "worker-1 on node2 failed in phase script: ValueError: boom" in done.stderr
    # On a busy machine, another worker may still wait for its result of the first exchange.
    assert re.search("'(fc.weight|a)', 50000 x float32, sum: worker-1 has failed: ValueError: boom", done.stdout)
    assert status.failures[0].host == "node2"
    hosts = {file.stem: read_lines(file).lines[0]["host"] for file in status.path.glob("records/*")}
    assert set(hosts.values()) == {"node1", "node2"}
    said = sorted(line.split()[1:] for line in done.stdout.splitlines() if line.startswith("at "))
    wanted, local = [], {"node1": 0, "node2": 0}
    for rank in range(3):
        host = hosts[f"worker-{rank}"]
        others = sum(hosts[f"worker-{k}"] == host for k in range(3))
        wanted.append([host, str(rank), str(local[host]), str(others), hosts["worker-0"]])
        local[host] += 1
    assert said == sorted(wanted)


def test_the_job_of_the_manual_runs_a_script(tmp_path):
    """As PBS starts it: without the environment of the person that submits it."""
    cluster = make_cluster(tmp_path, hosts=2)
    (tmp_path / "nodefile").write_text("node1\nnode1\nnode2\nnode2\n")
    (tmp_path / "train.py").write_text(SCRIPT)
    job = documented_job("#PBS").replace("/path/to/.venv", str(interpreter("mpich").parents[1]))
    (tmp_path / "job.sh").write_text(job.replace("-n 16 --servers 4", "-n 3 --servers 1").replace(".py", ".py none"))
    environment = {**cluster.of_job, "PBS_O_WORKDIR": str(tmp_path)}
    del environment["PYTHONPATH"]
    done = subprocess.run(
        [*cluster.enter, "bash", tmp_path / "job.sh"],
        env=environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    hosts = [line.split()[1] for line in done.stdout.splitlines() if line.startswith("at ")]
    assert sorted(hosts) in (["node1", "node1", "node2"], ["node1", "node2", "node2"])


BITS = """
import hashlib, sys
import numpy as np
import hpcps.numpy as bps
from hpcps.transport.shared_memory import Neighbours
Neighbours.reach = lambda self, cards, me: [False] * len(cards)  # the hosts are one machine
bps.init()
random, bits = np.random.default_rng(bps.rank()), hashlib.sha256()
for size in (100, 30_000, 800_001):
    for rule in (None, "median"):
        values = random.standard_normal(size).astype(np.float32)
        bits.update(bps.push_pull(values, name=f"{size} {rule}", rule=rule).tobytes())
sys.stdout.write(f"bits {bits.hexdigest()}\\n")
"""


@pytest.mark.parametrize(
    "transport", ["mpi", pytest.param("pslite", marks=pytest.mark.soak)], ids=["over MPI", "over ps-lite"]
)
def test_workers_combine_beside_servers_of_other_hosts(tmp_path, transport):
    """The bits are those without servers, and each host sends as much as `--dry-run` says."""
    cluster, python = make_cluster(tmp_path, hosts=3), interpreter("mpich")
    (tmp_path / "train.py").write_text(BITS)

    def launch(*arguments):
        words = [python, "-m", "hpcps", "launch", "--transport", transport, *arguments, python, "train.py"]
        done = subprocess.run(
            [*cluster.enter, *words], env=cluster.of_job, cwd=tmp_path, capture_output=True, text=True, timeout=90
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.splitlines()

    alone = launch("-n", "2")
    mixed = launch("-n", "2", "--servers", "1", "--colocated", "--hostfile", "nodefile")
    bits = [line for line in (*alone, *mixed) if line.startswith("bits ")]
    assert len(bits) == 4
    assert len(set(bits)) == 1
    # Each of the two hosts of workers combines a quarter, and the third one a half.
    sent = {line.split()[1]: line.split()[4] for line in mixed if line.startswith("hpcps: ")}
    total = 2 * 4 * 830_101 / 1e6
    assert {name: float(size) for name, size in sent.items()} == pytest.approx(
        dict.fromkeys(("worker-0", "worker-1", "server-0"), total), rel=0.1
    ), mixed
