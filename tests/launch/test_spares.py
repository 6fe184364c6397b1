"""Spare hosts: the processes of a host that is gone are replaced on the next one."""

import os
import shlex
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from host_namespaces import HostNamespaces
from running_processes import processes, within
from small_experiment import small_experiment
from survive.test_lost_workers import survivors

from hpcps.cli.main import main
from hpcps.launch.local_rank import problems
from hpcps.launch.plan import Plan, PlannedRun, Rank
from hpcps.launch.remote import remote_command
from hpcps.records.files import read_lines
from hpcps.spec.checks import contradictions
from hpcps.spec.problems import dotted

pytestmark = pytest.mark.usefixtures("starts_processes")

ROOT = Path(__file__).parents[2]
WORLD = (Rank(0, "validator", 0, "localhost"), Rank(1, "worker", 0, "elsewhere"), Rank(2, "worker", 1, "elsewhere"))
SPARES = ["gone.too", "spare-1", "spare-2"]
AGENT = """#!/bin/sh
# HOST COMMAND...
[ "$1" = gone.too ] && exit 255
host=$1; shift
on_host=$host exec sh -c "$*"
"""
TELLS = """import os, pathlib, sys, time
folder, variable = pathlib.Path(sys.argv[1]), os.environ.get
name = f"{variable('HPCPS_RANK')} on {variable('on_host')} number {variable('HPCPS_INCARNATION', 0)}"
(folder / name).write_text(str(os.getpid()))
while not (folder / "over").exists():
    time.sleep(0.05)
"""


@pytest.fixture
def plan(tmp_path):
    """Write a plan whose workers may be lost, with a configfile of programs that say where they run."""
    survive = {"workers": True, "after": 5.0, "spares": SPARES}
    runs = (PlannedRun("run", "", str(tmp_path), {"run": {"survive": survive}}),)
    plan = Plan(WORLD, runs, mpi=False)
    plan.write(tmp_path / "plan")
    (tmp_path / "tells.py").write_text(TELLS)
    program = f"{sys.executable} {tmp_path}/tells.py {tmp_path}"
    (tmp_path / "conf").write_text(f"-n 1 -host localhost {program}\n-n 2 -host elsewhere {program}\n")
    (tmp_path / "agent").write_text(AGENT)
    (tmp_path / "agent").chmod(0o755)
    return plan


def test_the_processes_of_a_host_that_is_gone_are_replaced_on_the_next_spare_host(plan, tmp_path):
    command = [sys.executable, "-m", "hpcps.launch.starter", str(tmp_path / "conf"), "--plan", str(tmp_path / "plan")]
    starter = subprocess.Popen(
        [*command, "--agent", str(tmp_path / "agent")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        for where in ("elsewhere number 0", "spare-1 number 2000000", "spare-2 number 3000000"):
            files = [tmp_path / f"{rank} on {where}" for rank in (1, 2)]
            within(40, lambda files=files: all(file.exists() for file in files), where)
            if where.startswith("spare-2"):
                break
            agents = [pid for pid, words in processes(str(tmp_path)).items() if "--host elsewhere" in words]
            for pid in agents:
                os.kill(pid, signal.SIGKILL)
            within(10, lambda files=files: not any(_lives(file) for file in files), "the end of both")
        (tmp_path / "over").touch()
        output, _ = starter.communicate(timeout=30)
    finally:
        starter.kill()
        starter.communicate()
    assert starter.returncode == 0, output
    assert [line for line in output.splitlines() if line.startswith("hpcps:")] == [
        f"hpcps: {gone} is gone; its processes are replaced on {spare}"
        for gone, spare in pairwise(["elsewhere", *SPARES])
    ]
    assert not processes(str(tmp_path))


def _lives(file):
    return Path(f"/proc/{file.read_text()}").exists()


def test_a_process_may_run_on_a_spare_host_if_it_replaces_another(plan):
    assert problems(plan, 1, 3, "worker", "spare-2") == []
    assert problems(plan, 1, 3, "worker", "other") == ["rank 1 (worker-0) runs on other, the plan has it on elsewhere"]


def test_ssh_notices_that_a_host_is_gone():
    words = remote_command("/usr/bin/ssh", "n1", ["true"], {}, silence=6.0)
    assert shlex.join(words) == ("/usr/bin/ssh -o BatchMode=yes -o ConnectTimeout=6 -o ServerAliveInterval=2 n1 true")
    assert remote_command("agent", "n1", ["true"], {}, silence=6.0) == ["agent", "n1", "true"]


SMALL = small_experiment(
    "small",
    {
        **{"topology.workers": 2, "topology.validators": 1, "topology.servers": 1, "transport.kind": "pslite"},
        **{"data.limit": 160, "train.epochs": 3000, "survive.workers": True, "survive.after": 2},
    },
)


@pytest.mark.thorough
def test_a_run_goes_on_without_a_host_and_its_worker_is_replaced_on_a_spare_one(tmp_path):
    """The second host, which has worker 1, is gone."""
    hosts = HostNamespaces(tmp_path, 3)
    hosts.start()
    try:
        first, second, spare = hosts.names
        (tmp_path / "small.toml").write_text(SMALL)
        (tmp_path / "hosts").write_text(f"{first} slots=4\n{second} slots=1\n")
        run = [sys.executable, "-m", "hpcps", "run", "small.toml", "--hostfile", "hosts", "--set"]
        environment = {**os.environ, "PATH": f"{hosts.path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        with (tmp_path / "output").open("w") as output:
            process = subprocess.Popen(
                [*hosts.enter, *run, f'survive.spares=["{spare}"]'],
                cwd=tmp_path, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
            )  # fmt: skip

        def text():
            return (tmp_path / "output").read_text()

        def lines(name, event):
            files = tmp_path.glob(f"results/small/runs/*/records/{name}.jsonl")
            return [line for file in files for line in read_lines(file).lines if line["event"] == event]

        def in_round(workers):
            assert process.poll() is None, text()
            return [line for line in lines("server-0", "round")[-3:] if lines("validator-0", "round")] and any(
                line["participants"] == workers for line in lines("validator-0", "round")[-3:]
            )

        within(90, lambda: in_round([0, 1]), text)
        hosts.kill(2)
        within(90, lambda: len(lines("server-0", "replaced") + lines("validator-0", "replaced")) == 1, text)
        within(60, lambda: in_round([0, 1]), text)
        process.send_signal(signal.SIGTERM)
        process.wait(60)
        assert f"hpcps: {second} is gone; its processes are replaced on {spare}" in text()
        assert "stopped by SIGTERM; run it again to go on" in text()
        assert hosts.log.read_text().split() == [second, spare]
    finally:
        process.kill()
        process.wait()
        hosts.stop()


@pytest.mark.parametrize(
    ("hosts", "spare", "words"),
    [
        (None, "n7", "survive.spares is for the hosts of a launch, and this one is on this machine alone"),
        ("n1 slots=9\nn7 slots=9\n", "n7", "survive.spares has n7, and so has hosts: a spare host has no processes"),
        ("n7.here slots=9\n", "n7", "survive.spares has n7, and so has hosts"),
        ("10.9.8.7 slots=9\n", "10.9.8.7", "survive.spares has 10.9.8.7, and so has hosts"),
        ("10.9.8.7 slots=9\n", "10.9.8.8", ""),
        ("n7.here slots=9\n", "n7.there", ""),
    ],
)
def test_what_spare_hosts_are_refused(hosts, spare, words, tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    options = []
    if hosts:
        (tmp_path / "hosts").write_text(hosts)
        options = ["--hostfile", "hosts"]
    command = [sys.executable, "-m", "hpcps", "run", "small.toml", "--dry-run", "--set", f'survive.spares=["{spare}"]']
    done = subprocess.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == (2 if words else 0), done.stderr
    assert words in done.stderr


@pytest.mark.parametrize(
    ("survive", "message"),
    [
        ({"spares": ("localhost",)}, "localhost is this machine, which runs hpcps: name other hosts"),
        ({"spares": ("n1", "n2", "n1")}, "has n1 twice: name each host once"),
        ({"spares": ("n1",), "workers": False}, "has an effect only with workers = true: set that, or leave it out"),
    ],
)
def test_mistakes_about_spare_hosts(survive, message):
    run = survivors(survive={"workers": True, **survive}, transport={"kind": "pslite"})
    found = {dotted(problem.path): problem.message for problem in contradictions(run)}
    assert found["survive.spares"] == message


def test_check_says_where_the_processes_of_a_host_are_replaced(tmp_path, capsys):
    (tmp_path / "small.toml").write_text(SMALL)
    assert main(["check", str(tmp_path / "small.toml"), "--set", 'survive.spares=["n7", "n8"]']) == 0
    assert "a lost worker is replaced (on n7 or n8 if its host is gone); a round needs" in capsys.readouterr().out
