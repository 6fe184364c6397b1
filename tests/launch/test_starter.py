"""Processes that are started without a launcher of MPI, here and on a second host."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from host_namespaces import HostNamespaces
from running_processes import processes, within
from small_experiment import small_experiment

from hpcps.errors import LaunchError
from hpcps.launch.losses import Losses, Resize
from hpcps.launch.plan import Plan, PlannedRun, Rank, Script
from hpcps.transport.rendezvous import Rendezvous

pytestmark = pytest.mark.usefixtures("starts_processes")

ROOT = Path(__file__).parents[2]
SMALL = small_experiment(
    "small",
    {"topology.workers": 1, "topology.servers": 2, "transport.kind": "pslite", "data.limit": 320},
    """
[[sweep]]
"train.mode" = ["sync", "async"]
"validation.rule" = [{ kind = "zeno" }, { kind = "zeno++" }]
""",
)
# Each line is one write: without a buffer, print() writes a line in pieces, and those of two processes may mix.
SAY = (
    "import os, sys, time; say = lambda line: os.write(1, f'{line}\\n'.encode()); "
    "say(f'{os.environ[\"HPCPS_RANK\"]} {sys.argv[1:]}'); "
)


@pytest.fixture
def start(tmp_path):
    """Start programs in Python: a list of (count, host, name of program); what each does is by name."""
    started = []

    def begin(lines, programs, *options, **more):
        for name, text in programs.items():
            (tmp_path / f"{name}.py").write_text(SAY + text)
        conf = tmp_path / "conf"
        conf.write_text(
            "".join(f"-n {n} -host {host} {sys.executable} {tmp_path}/{name}.py {name}\n" for n, host, name in lines)
        )
        command = [sys.executable, "-m", "hpcps.launch.starter", str(conf), *options]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **more)
        started.append(process)
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def test_each_gets_its_rank(start, tmp_path):
    process = start([(2, "localhost", "worker"), (1, "localhost", "server")], {"worker": "", "server": ""})
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0
    assert sorted(output.splitlines()) == ["0 ['worker']", "1 ['worker']", "2 ['server']"]


def test_the_first_failure_ends_all(start, tmp_path):
    programs = {"sleeps": "time.sleep(100)", "fails": "os.kill(os.getpid(), 9)"}
    process = start([(2, "localhost", "sleeps"), (1, "localhost", "fails")], programs)
    process.communicate(timeout=90)
    assert process.returncode == 137
    assert not processes(str(tmp_path))


@pytest.fixture
def replacing(tmp_path):
    """Write a plan whose processes 1 and 2 may be lost; return the options of the starter."""
    runs = (PlannedRun("run", "", str(tmp_path), {"run": {"survive": {"workers": True, "after": 5.0}}}),)
    world = (Rank(0, "validator", 0, "localhost"), *(Rank(k, "worker", k - 1, "localhost") for k in (1, 2)))
    Plan(world, runs, mpi=False).write(tmp_path / "plan")
    return "--plan", str(tmp_path / "plan")


SHOWN = "open(sys.argv[0] + '.shown', 'w').close()"
WAITS = "exec('while not os.path.exists(os.path.dirname(sys.argv[0]) + \"/dies.py.shown\"): time.sleep(0.05)')"
NUMBER = "number = int(os.environ.get('HPCPS_INCARNATION', 0)); say(f'number {number}'); "


def test_what_may_be_lost_is_started_again_with_its_number(start, replacing, tmp_path):
    last = "os.kill(os.getpid(), 9) if number < 2 else " + SHOWN
    programs = {"keeps": WAITS, "dies": NUMBER + last}
    process = start([(1, "localhost", "keeps"), (1, "localhost", "dies")], programs, *replacing)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0
    assert [line for line in output.splitlines() if line.startswith("number")] == ["number 0", "number 1", "number 2"]
    assert "hpcps: worker-0 is replaced (1)\n" in output
    assert not processes(str(tmp_path))


def test_an_error_of_what_may_be_lost_ends_all(start, replacing, tmp_path):
    programs = {"sleeps": "time.sleep(100)", "fails": NUMBER + "sys.exit(3) if number else os.kill(os.getpid(), 9)"}
    process = start([(1, "localhost", "sleeps"), (1, "localhost", "fails")], programs, *replacing)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 3
    assert output.count("number") == 2
    assert not processes(str(tmp_path))


def test_others_are_not_started_again(start, replacing, tmp_path):
    programs = {"dies": "os.kill(os.getpid(), 9)", "sleeps": "time.sleep(100)"}
    process = start([(1, "localhost", "dies"), (2, "localhost", "sleeps")], programs, *replacing)
    process.communicate(timeout=90)
    assert process.returncode == 137
    assert not processes(str(tmp_path))


def test_a_replacement_that_comes_too_late_ends_with_the_others(start, replacing, tmp_path):
    """The validator has finished; a worker that is started then would wait for it without end."""
    late = f"({SHOWN}, time.sleep(100)) if number else os.kill(os.getpid(), 9)"
    programs = {"ends": WAITS, "dies": NUMBER + late}
    process = start([(1, "localhost", "ends"), (1, "localhost", "dies")], programs, *replacing)
    process.communicate(timeout=60)
    assert process.returncode == 0
    assert not processes(str(tmp_path))


def test_nothing_is_started_again_after_a_stop(start, replacing, tmp_path):
    programs = {"sleeps": NUMBER + "time.sleep(100)"}
    process = start([(3, "localhost", "sleeps")], programs, *replacing)
    within(30, lambda: len(processes(str(tmp_path))) >= 4, "three processes and the starter")
    time.sleep(1.0)
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 143
    assert "is replaced" not in output
    assert not processes(str(tmp_path))


@pytest.fixture
def scripted(tmp_path):
    """Write the plan of a script that survives lost processes; return the options of the starter."""
    world = (Rank(0, "worker", 0, "localhost"), Rank(1, "worker", 1, "localhost"))
    runs = (PlannedRun("run", "", str(tmp_path), {"run": {}}),)
    Plan(world, runs, mpi=False, script=Script(("python",), "/", 1, survives=True)).write(tmp_path / "plan")
    return "--plan", str(tmp_path / "plan")


def test_a_lost_process_of_a_script_is_told_and_started_again_and_waits_for_no_other(start, scripted, tmp_path):
    programs = {"keeps": WAITS, "dies": NUMBER + "os.kill(os.getpid(), 9) if number < 1 else " + SHOWN}
    process = start([(1, "localhost", "keeps"), (1, "localhost", "dies")], programs, *scripted)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 0
    assert "hpcps: worker-1 is replaced (1)\n" in output
    losses = Losses(tmp_path / "plan")
    assert losses.names() == ["worker-1.0"]
    assert losses.read("worker-1.0").why == "was killed by signal 9 (SIGKILL)"


def test_a_process_that_is_killed_when_another_has_ended_its_script_is_not_started_again(start, scripted, tmp_path):
    programs = {"ends": SHOWN, "dies": WAITS.replace("dies", "ends") + "; time.sleep(2); os.kill(os.getpid(), 9)"}
    process = start([(1, "localhost", "ends"), (1, "localhost", "dies")], programs, *scripted)
    output, _ = process.communicate(timeout=90)
    assert process.returncode == 137
    assert "is replaced" not in output
    assert Losses(tmp_path / "plan").names() == []


def test_a_script_gets_the_processes_for_which_it_asks_and_others_end_by_themselves(start, scripted, tmp_path):
    """worker-1 leaves while worker-2 joins, is killed and replaced; then worker-1 joins again."""
    waits = (
        "name = os.environ['HPCPS_RANK'].split('-')[-1]; say(f'began {name}'); file = f'{os.path.dirname(sys.argv[0])}"
        "/end-{name}'\n"
        "while not os.path.exists(file): time.sleep(0.02)\n"
        "how = open(file).read(); os.unlink(file); how and os.kill(os.getpid(), 9)"
    )
    process = start([(2, "localhost", "waits")], {"waits": waits}, *scripted)
    said = [process.stdout.readline() for _ in range(4)]
    losses, first = Losses(tmp_path / "plan"), Plan.read(tmp_path / "plan").world
    second = (first[0], Rank(1, "worker", 2, "localhost"))

    def end(name, how):
        (tmp_path / f"end-{name}").write_text(how)
        within(20, lambda: not (tmp_path / f"end-{name}").exists(), f"worker-{name}")

    losses.resize(Resize.of(first, second))
    end(2, "kill")
    end(1, "")
    within(20, lambda: "worker-2.0" in losses.names(), losses.names)
    losses.resize(Resize.of(second, (*second, Rank(2, "worker", 1, "localhost"))))
    for name in (2, 1, 0):  # nobody is replaced after the first that ends
        end(name, "")
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    began = sorted(line.strip() for line in [*said, *output.splitlines()] if line.startswith("began"))
    assert began == ["began 0", "began 1", "began 1", "began 2", "began 2"]
    assert "hpcps: the script goes on with 2 workers: worker-2 joins; worker-1 leaves\n" in output
    assert "hpcps: worker-2 is replaced (1)\n" in output
    assert "hpcps: the script goes on with 3 workers: worker-1 joins\n" in output
    assert not processes(str(tmp_path))


def test_a_process_that_leaves_and_joins_again_between_two_looks_of_the_starter_is_started_again(
    start, scripted, tmp_path
):
    waits = (
        "name = os.environ['HPCPS_RANK'].split('-')[-1]; say(f'began {name}'); file = f'{os.path.dirname(sys.argv[0])}"
        "/end-{name}'; open(f'{file}-{os.getpid()}', 'w').close()\n"
        "while not os.path.exists(file): time.sleep(0.02)\n"
        "os.unlink(file)"
    )
    process = start([(2, "localhost", "waits")], {"waits": waits}, *scripted)
    said = [process.stdout.readline() for _ in range(4)]
    losses, first = Losses(tmp_path / "plan"), Plan.read(tmp_path / "plan").world
    process.send_signal(signal.SIGSTOP)
    losses.resize(Resize.of(first, first[:1]))
    losses.resize(Resize.of(first[:1], first))
    (losses.path / "resize.3").symlink_to("later")  # a network file system may show a name first
    (tmp_path / "end-1").touch()
    within(20, lambda: not (tmp_path / "end-1").exists(), "worker-1")
    process.send_signal(signal.SIGCONT)
    within(10, lambda: len([*tmp_path.glob("end-1-*")]) == 2, "worker-1 to begin again")
    (losses.path / "resize.3").unlink()
    for name in (0, 1):
        (tmp_path / f"end-{name}").touch()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert sum(line.startswith("began") for line in said) == 2
    assert "hpcps: the script goes on with 1 worker: worker-1 leaves\n" in output
    assert "hpcps: the script goes on with 2 workers: worker-1 joins\n" in output


def test_a_host_without_a_process_of_a_script_may_get_some_again(start, scripted, tmp_path):
    """The agent starts them on this host, in the name of another one; its starter waits for further ones."""
    agent = tmp_path / "agent"
    agent.write_text(f'#!/bin/sh\necho >>{tmp_path}/agents\nshift\nexec sh -c "$*"\n')
    agent.chmod(0o755)
    waits = (
        "name = os.environ['HPCPS_RANK']; open(f'{os.path.dirname(sys.argv[0])}/began-{name}', 'w').close()\n"
        "while not os.path.exists(f'{os.path.dirname(sys.argv[0])}/end-{name}'): time.sleep(0.02)"
    )
    process = start([(2, "localhost", "waits")], {"waits": waits}, *scripted, "--agent", str(agent))
    within(20, (tmp_path / "began-worker-1").exists, "worker-1")
    losses, worlds = Losses(tmp_path / "plan"), [Plan.read(tmp_path / "plan").world]
    for index in (2, 3):
        worlds.append((*worlds[0], Rank(2, "worker", index, "elsewhere.invalid")))
        losses.resize(Resize.of(worlds[-2], worlds[-1]))
        within(20, (tmp_path / f"began-worker-{index}").exists, f"worker-{index}")
        if index == 2:
            worlds.append(worlds[0])
            losses.resize(Resize.of(worlds[-2], worlds[-1]))
            (tmp_path / "end-worker-2").touch()
            within(20, lambda: len(processes(f"{tmp_path}/waits.py")) == 2, "worker-2 to end")
            time.sleep(0.5)
    for index in (3, 0, 1):
        (tmp_path / f"end-worker-{index}").touch()
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 0, output
    assert output.count("the script goes on with 3 workers") == 2
    assert (tmp_path / "agents").read_text() == "\n"  # one that ends while others begin would leave them out
    assert not processes(str(tmp_path))


def test_who_is_told_to_stop_may_end_by_itself(start, tmp_path):
    slow = (
        "import signal\n"
        "def end(*_):\n  time.sleep(0.1 + int(os.environ['HPCPS_RANK'])); say('ended'); sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, end); say('ready'); time.sleep(100)"
    )
    process = start([(2, "localhost", "slow")], {"slow": slow})
    lines = [process.stdout.readline() for _ in range(4)]
    assert sum("ready" in line for line in lines) == 2
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=90)
    assert output.count("ended") == 2
    assert process.returncode == 143


def test_none_outlives_a_starter_that_is_killed(start, tmp_path):
    process = start([(2, "localhost", "sleeps")], {"sleeps": "time.sleep(100)"})
    process.stdout.readline()
    process.kill()
    within(10, lambda: not processes(str(tmp_path)), lambda: processes(str(tmp_path)))


def test_what_an_agent_started_ends_with_its_input(start, tmp_path):
    """As where the connection breaks; a byte before that is a signal."""
    # With sigwait: Python may execute a handler only after a sleep that began just after the signal.
    note = f"""
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
print("ready", flush=True)
signal.sigwait([signal.SIGUSR1])
open({str(tmp_path / "heard")!r}, "w").close()
time.sleep(100)"""
    lines = [(1, "elsewhere", "sleeps"), (1, "nowhere", "sleeps")]
    process = start(lines, {"sleeps": note}, "--host", "elsewhere", stdin=subprocess.PIPE)
    assert process.stdout.readline() == "0 ['sleeps']\n"
    process.stdout.readline()
    process.stdin.write(chr(signal.SIGUSR1))
    process.stdin.flush()
    within(10, (tmp_path / "heard").exists, "the signal")
    process.stdin.close()
    assert process.wait(20) != 0
    within(10, lambda: not processes(str(tmp_path)), lambda: processes(str(tmp_path)))


def test_nobody_believes_a_scheduler_that_is_gone(tmp_path):
    rendezvous = Rendezvous(tmp_path / "plan")
    with pytest.raises(LaunchError, match="the file is missing or empty"):
        rendezvous.find(0.1)
    rendezvous.announce("127.0.0.1", 1)
    with pytest.raises(LaunchError, match=r"no process listens at its address, 127\.0\.0\.1:1"):
        rendezvous.find(0.1)
    rendezvous.clear()
    assert not list(tmp_path.iterdir())


@pytest.fixture
def two_hosts(tmp_path):
    hosts = HostNamespaces(tmp_path, 2)
    hosts.start()
    yield hosts
    hosts.stop()


def generate(two_hosts, tmp_path, *more):
    """Write the files of a run on both hosts; return the command that starts it, and its environment."""
    (tmp_path / "small.toml").write_text(SMALL)
    (tmp_path / "hosts").write_text("".join(f"{name} slots=3\n" for name in two_hosts.names))
    script = [sys.executable, str(ROOT / "launcher" / "configgen.py"), "small.toml", "--hostfile", "hosts"]
    environment = {**os.environ, "PATH": f"{two_hosts.path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*script, "--dialect", "plain", "-o", "conf", "--results", "results", *more],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return shlex.split(done.stdout.splitlines()[-1]), environment


def test_two_hosts_over_ssh(two_hosts, tmp_path):
    """A synchronous and an asynchronous run. The nodes listen at the network between the hosts, and nowhere else."""
    command, environment = generate(two_hosts, tmp_path)
    done = subprocess.run(
        [*two_hosts.enter, *command], env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    runs = list((tmp_path / "results" / "small" / "runs").iterdir())
    assert [(run / "DONE").exists() for run in runs] == [True, True]
    assert two_hosts.log.read_text() == f"{two_hosts.names[1]}\n"
    plan = Plan.read(tmp_path / "conf.plan.json")
    nodes = json.loads((runs[0] / "provenance.json").read_text())["nodes"]
    assert {name: where.partition(":")[0] for name, where in nodes.items()} == {
        str(rank): rank.host for rank in plan.world
    }
    assert not (tmp_path / "conf.plan.json.scheduler").exists()
