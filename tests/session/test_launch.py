"""`hpcps launch`: scripts without a framework, so that they start fast; what each process says when one fails."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from collections import Counter
from unittest.mock import MagicMock as Mock

import numpy as np
import pytest
from environments import interpreter
from members import Members

from hpcps.cli.main import main
from hpcps.errors import SpecError
from hpcps.launch.exit_status import ExitStatus
from hpcps.records.collect import collect
from hpcps.records.files import read_lines
from hpcps.records.status import SweepProgress
from hpcps.records.trace.reader import read_trace
from hpcps.records.writer import RecordWriter
from hpcps.session.record import ScriptRecord

pytestmark = pytest.mark.usefixtures("starts_processes")

SCRIPT = """
import os, signal, sys, threading, time
import numpy as np
from hpcps.session.ending import ScriptEnding
from hpcps.session.join import join_launch
from hpcps.session.tensors import Declaration
mode = sys.argv[1]
if mode.startswith("apart"):  # as on separate hosts: no process reads another's memory
    from hpcps.transport.shared_memory import Neighbours
    Neighbours.reach = lambda self, cards, me: [False] * len(cards)
    mode = mode[6:]
if mode == "imports": from mpi4py import MPI
if mode.startswith("early") and os.environ["RANK"] == "1": sys.exit(int(mode[-1]))
if mode == "late" and os.environ["RANK"] == "1": time.sleep(4)
session = join_launch(1.0 if mode == "late" else 600.0)
ending = ScriptEnding(session)
def exchange(name, size, reduction="sum", given=True):
    data = np.arange(size, dtype=np.float32) * (session.rank + 1)
    tensor = session.declare(Declaration(name, "float32", ((size,),), reduction))
    target = np.zeros(4 * size, np.uint8)
    session.wait(session.start(tensor, [data.view(np.uint8)] if given else None, [target]))
    return target.view(np.float32)
exchange("first", 10)
if mode == "none":
    reductions = "min", "max", "product", "broadcast"
    for size in (2, 700_001):
        found = [float(exchange(f"{name} {size}", size, name, session.rank == 1 or name != "broadcast")[1])
                 for name in reductions]
        assert found == [1.0, 3.0, 6.0, 2.0], found
        rows, every = np.full((session.rank * size, 3), session.rank, np.uint8), []
        tensor = session.declare(Declaration(f"rows {size}", "int8", ((1, 3),), "gather"))
        session.wait(session.start(tensor, rows, every))
        assert [part.shape for part in every] == [(k * size, 3) for k in range(3)]
        assert all((part == k).all() for k, part in enumerate(every))
if mode == "input": assert sys.stdin.read() == ""
if session.rank == 1:
    if mode == "raise": raise ValueError("boom")
    if mode == "mute": raise type("MuteError", (Exception,), {"__str__": lambda error: None})
    if mode == "surrogate": raise ValueError("no caf\\udce9.txt")
    if mode == "exit": sys.exit(0)
    if mode == "status": sys.exit(3)
    if mode == "quit": exit(3)
    if mode.startswith("_exit"): os._exit(int(mode[-1]))
    if mode == "caught":
        threading.Thread(target=lambda: sys.exit(1)).start()
        try: sys.exit(2)
        except SystemExit as caught: assert type(caught).__name__ == "SystemExit"
    if mode == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if mode == "hang": time.sleep(60)
size = 2_100_001 if (mode, session.rank) != ("size", 1) else 2_100_002
for step in range(3):
    assert exchange("layer.weight", size)[5] == 30.0
    session.step()
    session.log(None, {"accuracy": 0.5 + step / 10, "note": float("nan")})
if (mode, session.rank) == ("caught", 1): time.sleep(1)  # the others wait for it to end
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
sys.stdout.write(" ".join(["done", *(os.environ[name] for name in names), os.getcwd()]) + "\\n")
"""


@pytest.fixture
def launch(tmp_path, monkeypatch, capfd):
    """Call the command, in this process if it is for our Python, which is faster; return its status and output."""
    (tmp_path / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)

    def call(*arguments, python=sys.executable):
        words = [*map(str, ("launch", "-n", 3, *arguments[:-1], python, "script.py", arguments[-1]))]
        if python != sys.executable:
            return subprocess.run([python, "-m", "hpcps", *words], capture_output=True, text=True, timeout=60)
        status = main(words)
        return subprocess.CompletedProcess(words, status, *capfd.readouterr())

    return call


# Intel MPI has the launcher of MPICH, and its library reports to it in the same way.
INTEL = pytest.param("intel", marks=pytest.mark.soak)


@pytest.mark.parametrize("name", ["mpich", "openmpi", INTEL])
def test_a_launch_in_a_process_of_another_launch_reads_no_input_and_inherits_nothing(tmp_path, name):
    """A process of a launch under `mpirun`, torchrun or `hpcps launch` may start one of its own."""
    (tmp_path / "script.py").write_text(SCRIPT)
    python = interpreter(name)
    outer = {"HPCPS_RANK": "0", "HPCPS_PLAN": "/no/plan", "RANK": "0", "WORLD_SIZE": "7", "LOCAL_RANK": "0"}
    outer |= {"MASTER_ADDR": "nowhere", "MASTER_PORT": "1", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    if name == "mpich":
        outer |= {"PMI_RANK": "1", "PMI_SIZE": "2", "PMI_FD": "99", "HYDI_CONTROL_FD": "98"}
    if name == "openmpi":
        outer |= {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "1", "PMIX_NAMESPACE": "x"}
    reading, writing = os.pipe()  # open until the end, as a terminal is
    try:
        done = subprocess.run(
            [python, "-m", "hpcps", "launch", "-n", "3", python, "script.py", "input"],
            env=os.environ | outer, stdin=reading, cwd=tmp_path, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
    finally:
        os.close(reading)
        os.close(writing)
    assert done.returncode == 0, done.stdout + done.stderr
    found = sorted(line for line in done.stdout.splitlines() if line.startswith("done"))
    assert found == [f"done {k} 3 {k} 3 127.0.0.1 {tmp_path}" for k in range(3)]


@pytest.mark.parametrize(
    ("servers", "mode", "transport"),
    [
        pytest.param("0", "none", "mpi", marks=pytest.mark.soak),
        ("2", "none", "mpi"),
        ("0", "apart-none", "mpi"),
        ("0", "caught", "mpi"),
        ("1", "none", "pslite"),
    ],
)
def test_a_script_runs_to_its_end(tmp_path, launch, servers, mode, transport, monkeypatch):
    monkeypatch.setenv("BYTEPS_TRACE_START_STEP", "2")
    if mode == "apart-none" or transport == "pslite":
        monkeypatch.setenv("BYTEPS_SCHEDULING_CREDIT", "1")
    trace = ["--trace"] if servers == "2" else []
    done = launch("--servers", servers, "--transport", transport, *trace, mode)
    assert done.returncode == 0, done.stdout + done.stderr
    found = sorted(line for line in done.stdout.splitlines() if line.startswith("done"))
    assert found == [f"done {k} 3 {k} 3 127.0.0.1 {tmp_path}" for k in range(3)]
    names = [*(f"worker-{k}" for k in range(3)), *(f"server-{k}" for k in range(int(servers)))]
    lines = [line for line in done.stdout.splitlines() if line.startswith("hpcps: ")]
    assert sorted(line.split()[1] for line in lines) == sorted(names), done.stdout
    worker = "3 steps, .* steps/s; [^0].* MB sent, .* MB received; .*% of the exchange hidden .*; limited by .*"
    for line in lines:
        assert re.search(worker if "worker" in line.split()[1] else "waited .* for worker-., which came last", line)
    (status,) = SweepProgress(list(tmp_path.glob("results/script/runs/*")), verify=True).poll()
    assert (status.state, status.round, status.epoch) == ("done", 3, 3.0)
    assert status.accuracy == pytest.approx(0.7)
    table = collect(tmp_path / "results" / "script").table
    assert sorted(f"{row.role}-{row.index:.0f}" for row in table[table["event"] == "end"].itertuples()) == sorted(names)
    assert table[table["event"] == "evaluation"]["accuracy"].tolist() == pytest.approx([0.5, 0.6, 0.7])
    if mode == "caught":
        others = table[(table["event"] == "end") & (table["index"] != 1)]
        assert (others["wait"] > others["compute"]).all()
    rounds = table[table["event"] == "round"]
    assert (rounds.groupby("index").size() == 3).all()
    assert (rounds["bytes_sent"] > 500_000).all()
    assert str(table["command"][0]) == f"script.py {mode}"
    if servers == "2":
        check_trace(status.path, names)


def check_trace(run, names):
    trace = read_trace(run)
    assert sorted(str(process.peer) for process in trace.processes) == sorted(names)
    spans = trace.spans.groupby(["process", "activity"]).size()
    for name in names:
        wanted = {"send", "receive", "wait"} | ({"combine"} if "server" in name else {"train"})
        assert wanted <= {*spans[name].index} <= wanted | {"handle"}
    # Messages have come from those that sent them.
    sent, received = (trace.spans[trace.spans["activity"] == kind] for kind in ("send", "receive"))
    both = sent.merge(received, left_on=["process", "other", "number"], right_on=["other", "process", "number"])
    assert len(both) >= len(names)
    assert (both["kind_x"] == both["kind_y"]).all()
    assert (run / "trace.json").exists()
    for name in names:
        file = run / "trace" / name / "comm.json"
        assert file.exists() == ("worker" in name)
        events = json.loads(file.read_text())["traceEvents"] if file.exists() else []
        # Two exchanges of a tensor with a part at each server; the first one is not recorded.
        stages = Counter(event["name"] for event in events)
        each = {"Comm.layer.weight": 2, "Comm.layer.weight.PUSH": 4, "Comm.layer.weight.PULL": 4}
        assert stages == (each if events else {})
        for event in events:
            assert event["pid"] == "Comm.layer.weight"
            assert event["dur"] >= 0


@pytest.mark.parametrize(
    ("mode", "first", "why"),
    [
        ("raise", "worker-1 on .* failed .*ValueError: boom", "worker-1 has failed: ValueError: boom"),
        pytest.param(
            "mute",
            "worker-1 on .* failed .*MuteError: its text cannot be made",
            "worker-1 has failed: MuteError: its text cannot be made: its __str__() raised TypeError",
            marks=pytest.mark.soak,
        ),
        (
            "surrogate",
            r"worker-1 on .* failed .*caf\\udce9.txt",
            r"worker-1 has failed: ValueError: no caf\udce9.txt",
        ),
        ("kill", "worker-1 on .* failed .*SIGKILL", "worker-1 has ended: it was killed"),
        (
            "_exit0",
            "worker-1 on .* failed .*status 0 without shutdown",
            "worker-1 has ended: it was killed",
        ),
        pytest.param(
            "_exit2",
            "worker-1 on .* failed .*exited with status 2",
            "worker-1 has ended: it was killed",
            marks=pytest.mark.soak,
        ),
        ("status", "worker-1 on .* failed .*SystemExit: 3", "worker-1 has failed: SystemExit: 3"),
        pytest.param(
            "quit",
            "worker-1 on .* failed .*SystemExit: 3",
            "worker-1 has failed: SystemExit: 3",
            marks=pytest.mark.soak,
        ),
        ("exit", "worker-1 has ended its script", "worker-1 has ended its script or called shutdown"),
        (
            "apart-size",
            "tensor 1 differs",
            "worker-1 declares 'layer.weight', 2100002 x float32, sum, in script.py",
        ),
    ],
)
def test_the_others_end_and_say_whom_they_waited_for(tmp_path, launch, mode, first, why):
    # A failure of a script looks the same on both transports.
    transport = ["--transport", "pslite"] if mode == "raise" else []
    done = launch("--servers", "1" if mode == "raise" else "0", *transport, mode)
    assert done.returncode == 1
    assert re.search(first, done.stderr), done.stderr
    said = [line for line in done.stdout.splitlines() if re.match("hpcps: worker-[02] on ", line) and why in line]
    assert said, done.stdout
    assert all("layer.weight" in line and re.search(r"script.py, line \d+: ", line) for line in said)
    assert "BAD TERMINATION" not in done.stdout
    (status,) = SweepProgress(list(tmp_path.glob("results/script/runs/*"))).poll()
    assert status.state == "failed"
    assert mode == "exit" or str(status.failures[0]) in done.stderr


@pytest.mark.parametrize("name", ["mpich", pytest.param("mpich42", marks=pytest.mark.soak), "openmpi", INTEL])
def test_a_script_may_start_mpi_before_it_joins_the_servers(launch, name):
    done = launch("--servers", "2", "imports", python=interpreter(name))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("done ") == 3, done.stdout


def test_a_script_may_start_mpi_where_mpirun_starts_the_processes_of_another_transport(tmp_path, launch):
    """The servers do not start MPI, so it is not that of the launch."""
    (tmp_path / "hosts").write_text(f"{socket.gethostname()}:5\n")
    words = "--servers", "1", "--transport", "pslite", "--hostfile", tmp_path / "hosts", "imports"
    done = launch(*words, python=interpreter("mpich"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("done ") == 3, done.stdout


@pytest.mark.parametrize("name", ["mpich", pytest.param("openmpi", marks=pytest.mark.soak), INTEL])
def test_servers_end_if_all_scripts_end_without_joining_them(tmp_path, name):
    """They wait in the start of MPI, in which nothing can run."""
    python = interpreter(name)
    command = [python, "-m", "hpcps", "launch", "-n", "2", "--servers", "1", python, "-c", "pass"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    why = "its script exited with status 0 without joining the others in init()"
    assert re.search(rf"worker-[01] on .* failed in phase script: {re.escape(why)}", done.stderr), done.stderr


@pytest.mark.parametrize(
    ("transport", "mode", "why"),
    [
        ("mpi", "early0", "its script exited with status 0 without joining the others in init"),
        ("mpi", "early3", "its script exited with status 3 without joining the others in init"),
        pytest.param(
            "pslite",
            "early0",
            "its script exited with status 0 without joining the others in init",
            marks=pytest.mark.soak,
        ),
        ("mpi", "late", ""),
    ],
)
def test_a_process_that_does_not_join_ends_the_others(launch, transport, mode, why):
    done = launch("--transport", transport, mode)
    assert done.returncode == 1, done.stdout + done.stderr
    said = f"waited for worker-1: {why}" if why else r"waited 1 s for worker-1 to call init\(\)"
    assert re.search(f"hpcps: .*: script.py, line 15: worker-[02] {said}", done.stdout), done.stdout
    assert "Traceback" not in done.stdout
    assert re.search(f"worker-1 on .* failed .*{why}" if why else said, done.stderr), done.stderr


def test_a_signal_ends_the_script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "hpcps", "launch", "-n", "2", sys.executable, "script.py", "hang"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        while len(list(tmp_path.glob("results/script/runs/*/records/worker-*.jsonl"))) < 2:
            time.sleep(0.05)
            assert process.poll() is None
        time.sleep(0.5)
        process.terminate()
        printed, _ = process.communicate(timeout=30)
    assert process.returncode == 143
    assert "stopped by SIGTERM" in printed
    (status,) = SweepProgress(list(tmp_path.glob("results/script/runs/*"))).poll()
    assert status.state == "stopped"


def test_dry_run_starts_nothing(tmp_path, launch):
    done = launch("--servers", "1", "--name", "mine", "--dry-run", "none")
    assert done.returncode == 0, done.stderr
    assert "1 script on 4 processes" in done.stdout
    assert "done" not in done.stdout
    (plan,) = tmp_path.glob("results/mine/launch/*/conf.plan.json")
    assert not (tmp_path / "results/mine/runs").exists()
    assert '"script.py"' in plan.read_text()


def test_a_program_that_does_not_exist(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "hpcps", "launch", "-n", "1", "no-such-program"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "no-such-program: no such program" in done.stdout


def test_what_a_script_may_log(tmp_path):
    record = ScriptRecord(RecordWriter(tmp_path, "r", "worker", 0, "h"), Members(1).all[0])
    record.log(None, {"loss": np.float32(2.0), "accuracy": 1})
    record.log(7.5, {"loss": float("inf")})
    record.log(None, {})
    with pytest.raises(SpecError, match="has the field round already"):
        record.log(None, {"round": 3})
    with pytest.raises(SpecError, match="expects numbers"):
        record.log(None, {"loss": "low"})
    mute = type("Mute", (TypeError,), {"__str__": lambda error: None})
    with pytest.raises(SpecError, match=r"expects numbers.*its text cannot be made"):
        record.log(None, {"loss": Mock(["__float__"], __float__=Mock(side_effect=mute))})
    record.end("finished")
    lines = read_lines(tmp_path / "records/worker-0.jsonl").lines
    logged = [line for line in lines if line["event"] == "evaluation"]
    assert [line["epoch"] for line in logged] == [1.0, 7.5, 3.0]
    assert (logged[0]["loss"], logged[0]["accuracy"], logged[0]["step"]) == (2.0, 1.0, 0)


def test_what_limits_a_script(tmp_path):
    member = Members(2).all[0]
    record = ScriptRecord(RecordWriter(tmp_path, "r", "worker", 0, "h"), member)
    for task, text in [("train", "computing (100%"), ("wait", "the exchange (")]:
        for _ in range(2):
            time.sleep(0.02 if task == "train" else 0.2)
            record.charge(task)
            record.step()
        assert f"limited by {text}" in str(record)
    member.combined += 0.5
    record.step()
    assert "limited by combining" in str(record)
    member.waited[member.workers[1]] = 0.5
    assert "limited by worker-1, for which the others wait" in str(record)
    # Waiting for the others after the last step is no part of its exchanges.
    member.in_flight += 10.0
    record.step()
    before = str(record)
    assert re.search("; 9[0-9]% of the exchange hidden", before)
    member.in_flight += 0.2
    time.sleep(0.2)
    record.charge("wait")
    record.end("finished")
    assert str(record) == before


def test_importing_hpcps_imports_no_torch():
    code = "import sys, hpcps, hpcps.session.join, hpcps.cli.main; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_what_starts_a_script_imports_only_what_it_needs():
    code = "import sys, hpcps.session.__main__; assert not {'numpy', 'pydantic'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


SAVES = 'trap "echo saved >>state; exit 0" TERM; echo begun >>state; while :; do sleep 0.1; done'


def test_a_program_is_stopped_before_its_walltime_and_started_again_by_a_successor(tmp_path):
    """With the time to save what it needs; a busy machine needs more time to start it."""
    command = [sys.executable, "-m", "hpcps", "launch", "-n", "1", "--margin", "40", "--successors", "1", "--walltime"]

    def run(walltime, **variables):
        (tmp_path / "state").unlink(missing_ok=True)
        done = subprocess.run(
            [*command, str(walltime), "sh", "-c", SAVES], cwd=tmp_path, env={**os.environ, **variables},
            capture_output=True, text=True, timeout=90, check=False,
        )  # fmt: skip
        return done, (tmp_path / "state").exists() and (tmp_path / "state").read_text() == "begun\nsaved\n"

    walltime = 43
    while not (found := run(walltime))[1]:
        walltime += 10
        assert walltime < 100
    done, _ = found
    assert done.returncode == ExitStatus.SUSPENDED, done.stdout + done.stderr
    assert done.stdout.splitlines()[0] == "hpcps: time is nearly over: stopping ..."
    assert "failed" not in done.stdout + done.stderr
    last, _ = run(walltime, HPCPS_SUCCESSOR="1")
    assert last.returncode == ExitStatus.FAILED
    assert "--successors = 1 allows no job after this one (number 2 of its chain)" in last.stdout


def test_a_walltime_within_the_margin_is_refused(launch):
    done = launch("--walltime", "60", "none")
    assert done.returncode == ExitStatus.REFUSED
    assert "--walltime of 60 s leaves no time to train: a run stops --margin = 120 s before its end" in done.stderr
