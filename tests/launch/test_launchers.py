"""Every MPI, for real: what is generated puts every rank where the plan has it."""

import json
import socket
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from environments import DIALECTS, interpreter

from hpcps.launch.detect import find_launcher
from hpcps.launch.hostfile import Host
from hpcps.launch.launchers import Job
from hpcps.launch.placement import place
from hpcps.launch.plan import Plan
from hpcps.spec.schema import Topology

pytestmark = pytest.mark.usefixtures("starts_processes")

ROOT = Path(__file__).parents[2]
every_mpi = pytest.mark.parametrize("name", DIALECTS)


def start(job, dialect):
    """Start `placed.py` in place of the runtime; return what rank 0 gathered."""
    launch = find_launcher(dialect).launch_of(job)
    launch.write()
    conf = launch.files[job.configfile]
    assert "-m hpcps.execution" in conf
    job.configfile.write_text(conf.replace("-m hpcps.execution", "-m placed"))
    done = subprocess.run(launch.command, env=launch.environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("PLACED")]
    return json.loads(line.removeprefix("PLACED"))


@pytest.fixture
def job(tmp_path, name):
    python = interpreter(name)
    return Job(
        plan=Plan(place(Topology(servers=1, validators=1, workers=3)), ()),
        plan_file=tmp_path / "conf.plan.json",
        configfile=tmp_path / "conf",
        mpirun=python.parent / "mpirun",
        python=python,
        variables={"OMP_NUM_THREADS": "2", "PYTHONPATH": f"{ROOT}:{Path(__file__).parent}"},
    )


@every_mpi
def test_several_hosts_with_gpus(job, name):
    """Two names of this machine, two roles on each in turn, some ranks with a GPU of their own."""
    hosts = [Host("localhost", 3, ("0", "1")), Host(socket.gethostname(), 3)]
    topology = Topology(servers=2, validators=2, workers=4, colocate_validators=True)
    plan = Plan(place(topology, hosts), ())
    everyone = start(replace(job, plan=plan), DIALECTS[name])
    assert [each["rank"] for each in everyone] == list(range(8))
    assert [each["me"] for each in everyone] == [str(rank) for rank in plan.world]
    assert [each["role"] for each in everyone] == [rank.role for rank in plan.world]
    assert [each["problems"] for each in everyone] == [[]] * 8
    assert [each["gpu"] for each in everyone] == ["0", "1", "0", "1"] + [None] * 4
    assert {(each["threads"], each["arguments"]) for each in everyone} == {("2", 3)}


@pytest.mark.parametrize("name", ["mpich", "intel"])
def test_one_segment_for_all_roles(job, name, monkeypatch):
    dialect = DIALECTS[name]
    monkeypatch.setattr(type(find_launcher(dialect)), "longest_file", 100)
    everyone = start(job, dialect)
    assert {each["role"] for each in everyone} == {""}
    assert [each["me"] for each in everyone] == [str(rank) for rank in job.plan.world]
    assert [each["problems"] for each in everyone] == [[]] * 5


@pytest.mark.parametrize("name", ["mpich"])
def test_a_wrong_world_is_noticed(job, name):
    """A configfile of another plan: roles and size do not fit, and every rank says so."""
    launch = find_launcher(DIALECTS[name]).launch_of(job)
    launch.write()
    conf = launch.files[job.configfile].replace("-m hpcps.execution", "-m placed").replace("-n 3 ", "-n 2 ", 1)
    job.configfile.write_text(conf)
    done = subprocess.run(launch.command, env=launch.environment(), capture_output=True, text=True, timeout=60)
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("PLACED")]
    for each in json.loads(line.removeprefix("PLACED")):
        assert "a world of 4, the plan has 5 processes" in each["problems"][0]
