"""Which ranks of a launch on two hosts try whether MPI takes device memory, and on which hosts."""

import json
import os
import subprocess

import pytest
from cluster import make_cluster
from environments import ROOT, interpreter
from running_processes import processes, within

from hpcps.launch.plan import UNTRIED

pytestmark = pytest.mark.usefixtures("starts_processes")

BUFFERS = ROOT / "tests/buffers"
FILE = """
name = "hosts"
topology = { servers = 1, validators = 0, workers = 3 }
model = { name = "mlp" }
data = { name = "digits" }
train = { epochs = 1, batch_size = 8 }
"""
DEVICE = """
import os
import socket
import time

from late_device import LateDevice

LOG = {log!r}


class Noting:
    def pointer(self, memory):
        if os.environ["FAULT"] == "hangs" and socket.gethostname() == "node2":
            time.sleep(600)
        with open(LOG, "a") as log:
            log.write(f"{{socket.gethostname()}} {{os.getpid()}}\\n")
        bad = os.environ["FAULT"] == "crashes" and socket.gethostname() == "node2"
        return 64 if bad else super().pointer(memory)


class Trying(Noting, LateDevice):
    pass
"""
PROGRAM = """
import json, os, sys
from pathlib import Path
from hpcps.launch import gpu_mpi
from hpcps.launch.detect import detect_mpi
from hpcps.launch.hostfile import Host
from hpcps.launch.prepare import Site, prepare
from hpcps.spec.load import load_experiment

folder, number, found = Path(sys.argv[1]), 0, {}
mpi = detect_mpi()
for name, slots, device, fault, seconds, *settings in json.loads(sys.argv[2]):
    os.environ["FAULT"] = fault
    os.environ.pop("HPCPS_DEVICE", None)
    if device:
        os.environ["HPCPS_DEVICE"] = f"noting:{device}"
    gpu_mpi.DEADLINE = seconds
    hosts = [Host(f"node{place}", count) for place, count in enumerate(slots, 1) if count]
    points = load_experiment(folder / "hosts.toml", settings).points
    site = Site(mpi.launcher, mpi.mpirun, hosts)
    (launch,) = prepare(points, folder / "results", folder / name / "conf", site)
    runs = [point.run for point in points]
    trials = gpu_mpi.DeviceTrials()
    said = trials.device_memory(runs, launch, mpi.launcher)
    (folder / "log").touch()
    tried = {line.split()[1]: line.split()[0] for line in (folder / "log").read_text().splitlines()}
    (folder / "log").unlink()
    assert trials.device_memory(runs, launch, mpi.launcher) == said
    assert not (folder / "log").exists(), "each trial is made once"
    assert not list(folder.glob(f"{name}/trial*"))
    found[name] = [said, sorted(tried.values())]
print(json.dumps(found))
"""


def try_on_hosts(tmp_path, *cases):
    """Run `PROGRAM` on the first of two hosts; return what it found out in each case."""
    cluster = make_cluster(tmp_path, hosts=2)
    (tmp_path / "hosts.toml").write_text(FILE)
    (tmp_path / "noting.py").write_text(DEVICE.format(log=str(tmp_path / "log")))
    environment = {
        "HOME": str(tmp_path),
        "PATH": os.defpath,
        "PYTHONPATH": f"{ROOT}:{BUFFERS}:{tmp_path}",
        "PBS_ENVIRONMENT": "PBS_BATCH",
        "PBS_JOBID": "12.server",
        **cluster.environment,
    }
    command = [*cluster.enter, interpreter("mpich"), "-c", PROGRAM, str(tmp_path), json.dumps(cases)]
    done = subprocess.run(command, env=environment, cwd=tmp_path, text=True, capture_output=True, timeout=200)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_ranks_on_the_hosts_of_a_launch_try_it(tmp_path):
    alone = ["topology.workers=1"]
    found = try_on_hosts(
        tmp_path,
        ("alone", [1, 1], "Trying", "", 60, *alone),
        ("both", [2, 2], "Trying", "", 60),
        ("one-host", [4, 0], "Trying", "", 60),
        ("not-asked", [2, 2], "Trying", "", 60, "transport.device_buffers=direct"),
        ("bad", [1, 1], "Trying", "crashes", 60, *alone),
    )
    between = ["node1", "node2"]
    assert found.pop("bad")[0].startswith("through MPI between node1 and node2: mpirun ")
    assert found == {
        "alone": ["accepted", between],
        "both": ["accepted", ["node1", "node1", *between]],
        "one-host": ["accepted", ["node1", "node1"]],
        "not-asked": [UNTRIED, []],
    }


def test_a_trial_on_hosts_hangs_no_longer_than_its_deadline(tmp_path):
    found = try_on_hosts(tmp_path, ("hangs", [1, 1], "Trying", "hangs", 4, "topology.workers=1"))
    assert found["hangs"][0] == "through MPI between node1 and node2: mpirun does not answer within 4 s"
    within(60, lambda: not processes(str(tmp_path)), lambda: processes(str(tmp_path)))


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="this machine has NVIDIA's driver")
def test_hosts_are_asked_for_a_device_only_if_the_run_demands_one(tmp_path):
    auto, cuda = (("topology.workers=1", f"train.device={device}") for device in ("auto", "cuda"))
    found = try_on_hosts(tmp_path, ("auto", [1, 1], "", "", 60, *auto), ("cuda", [1, 1], "", "", 60, *cuda))
    assert found["auto"][0] == UNTRIED
    assert found["cuda"][0] == "through MPI between node1 and node2: there is no NVIDIA driver"
