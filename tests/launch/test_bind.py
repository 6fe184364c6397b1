"""Binding of processes to NUMA nodes."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from environments import interpreter

from hpcps.errors import LaunchError
from hpcps.launch import local_rank
from hpcps.launch.launchers import Intel, Job
from hpcps.launch.limits import numa_nodes
from hpcps.launch.plan import Plan, Rank, Script

WORLD = (
    Rank(0, "worker", 0, "a"),
    Rank(1, "worker", 1, "a"),
    Rank(2, "server", 0, "a"),
    Rank(3, "scheduler", 0, "a"),
    Rank(4, "worker", 2, "b"),
)
PLAN = Plan(WORLD, (), mpi=False, script=Script(("python", "train.py"), "/", 1, bind=True))


def describe(root, *texts):
    for number, text in enumerate(texts):
        (root / f"node{number}").mkdir(parents=True)
        (root / f"node{number}" / "cpulist").write_text(text + "\n")


def test_nodes_have_the_cores_that_this_process_may_use(tmp_path, monkeypatch):
    monkeypatch.setattr("hpcps.launch.limits.own_cores", lambda: (1, 2, 9, 10, 11))
    describe(tmp_path, "0-3,8-9", "4-7", "10,11-12", "")  # the last one has memory only
    assert numa_nodes(tmp_path) == [(1, 2, 9), (10, 11)]


def test_nodes_are_in_the_order_of_their_numbers(tmp_path, monkeypatch):
    monkeypatch.setattr("hpcps.launch.limits.own_cores", lambda: tuple(range(11)))
    describe(tmp_path, *map(str, range(11)))
    assert numa_nodes(tmp_path) == [(core,) for core in range(11)]


def test_a_system_that_does_not_describe_its_nodes(tmp_path):
    message = r"^--bind numa: .* does not tell which cores a NUMA node has .*: leave out --bind"
    with pytest.raises(LaunchError, match=message):
        numa_nodes(tmp_path)


def test_processes_of_a_host_use_its_nodes_in_turn(monkeypatch):
    bound = []
    monkeypatch.setattr(local_rank, "numa_nodes", lambda: [(0, 1), (2, 3)])
    monkeypatch.setattr(local_rank, "bind", bound.append)
    for rank in WORLD:
        local_rank.bind_to_node(PLAN, rank)
    assert bound == [(0, 1), (2, 3), (0, 1), (0, 1)]  # not the scheduler, which does nothing
    local_rank.bind_to_node(replace(PLAN, script=replace(PLAN.script, bind=False)), WORLD[0])
    assert len(bound) == 4


def test_intel_does_not_bind_them_again():
    job = Job(PLAN, Path("/r/plan.json"), Path("/r/conf"), Path("/i/mpirun"), Path("/v/python"), {"A": "1"})
    assert Intel().render(job).variables == {"I_MPI_PIN": "off"}
    assert Intel().render(replace(job, plan=replace(PLAN, script=replace(PLAN.script, bind=False)))).variables == {}


SCRIPT = """
import os, sys
import hpcps.numpy as bps
bps.init()
sys.stdout.write(f"cores {sorted(os.sched_getaffinity(0))}\\n")
"""


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize(
    ("name", "transport"),
    [
        ("mpich", "mpi"),
        pytest.param("openmpi", "mpi", marks=pytest.mark.soak),
        ("intel", "mpi"),
        pytest.param("mpich", "pslite", marks=pytest.mark.soak),
    ],
)
def test_a_script_runs_on_its_node(tmp_path, name, transport):
    python = interpreter(name)
    (tmp_path / "train.py").write_text(SCRIPT)
    words = [python, "-m", "hpcps", "launch", "-n", "2", "--transport", transport, "--bind", "numa"]
    if not Path("/sys/devices/system/node").is_dir():
        pytest.skip("this system does not describe its NUMA nodes")
    done = subprocess.run([*words, python, "train.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    nodes, own = numa_nodes(), sorted(os.sched_getaffinity(0))
    said = sorted(line.split(" ", 1)[1] for line in done.stdout.splitlines() if line.startswith("cores"))
    assert said == sorted(str(list(nodes[k % len(nodes)])) for k in range(2))
    assert sorted(os.sched_getaffinity(0)) == own
