"""`hpcps launch`: scripts without a framework, so that they start fast; what each process says when one fails."""

import os
import re
import subprocess
import sys
import time

import pytest

SCRIPT = """
import os, signal, sys, time
import numpy as np
from hpcps.session.join import ScriptEnding, join_launch
mode = sys.argv[1]
if mode.startswith("apart"):  # as on separate hosts: no process reads another's memory
    from hpcps.transport.shared_memory import Neighbours
    Neighbours.reach = lambda self, cards, me: [False] * len(cards)
    mode = mode[6:]
session = join_launch()
ScriptEnding(session)
def exchange(name, size):
    data = np.arange(size, dtype=np.float32) * (session.rank + 1)
    tensor = session.declare(name, "float32", (size,), "sum")
    target = np.zeros(4 * size, np.uint8)
    session.wait(session.start(tensor, data.view(np.uint8), target))
    return target.view(np.float32)
exchange("first", 10)
if session.rank == 1:
    if mode == "raise": raise ValueError("boom")
    if mode == "exit": sys.exit(0)
    if mode == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if mode == "hang": time.sleep(60)
size = 500_001 if (mode, session.rank) != ("size", 1) else 500_002
assert exchange("layer.weight", size)[5] == 30.0
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
sys.stdout.write(" ".join(["done", *(os.environ[name] for name in names), os.getcwd()]) + "\\n")
"""


def launch(tmp_path, *arguments, **keys):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "hpcps", "launch", "-n", "3", *arguments[:-1], sys.executable, "script.py"]
    return subprocess.run(
        [*command, arguments[-1]], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False, **keys
    )


@pytest.mark.parametrize(("servers", "mode"), [("0", "none"), ("2", "none"), ("0", "apart-none")])
def test_a_script_runs_to_its_end_and_leaves_nothing(tmp_path, servers, mode):
    done = launch(tmp_path, "--servers", servers, mode)
    assert done.returncode == 0, done.stdout + done.stderr
    found = sorted(line for line in done.stdout.splitlines() if line.startswith("done"))
    assert found == [f"done {k} 3 {k} 3 127.0.0.1 {tmp_path}" for k in range(3)]
    assert os.listdir(tmp_path) == ["script.py"]


@pytest.mark.parametrize(
    ("mode", "first", "why"),
    [
        ("raise", "worker-1 on .* failed .*ValueError: boom", "worker-1 has failed: ValueError: boom"),
        ("kill", "worker-1 on .* failed .*SIGKILL", "worker-1 has ended: it was killed, or it crashed"),
        ("exit", "worker-1 has ended its script", "worker-1 has ended its script or called shutdown"),
        ("apart-size", "tensor 1 differs", "worker-1 declares 'layer.weight', 500002 x float32, sum"),
    ],
)
def test_the_others_end_and_say_whom_they_waited_for(tmp_path, mode, first, why):
    done = launch(tmp_path, "--servers", "1" if mode == "raise" else "0", mode)
    assert done.returncode == 1
    assert re.search(first, done.stderr), done.stderr
    said = [line for line in done.stdout.splitlines() if re.match("hpcps: worker-[02] on ", line) and why in line]
    assert said, done.stdout
    assert all("layer.weight" in line for line in said)


def test_a_signal_ends_the_script(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "hpcps", "launch", "-n", "2", sys.executable, "script.py", "hang"]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        while not list(tmp_path.glob("results/scripts/launch/*/conf.plan.json.lost/worker-1")):
            time.sleep(0.05)
            assert process.poll() is None
        time.sleep(0.5)
        process.terminate()
        printed, _ = process.communicate(timeout=30)
    assert process.returncode == 143
    assert "stopped by SIGTERM" in printed


def test_dry_run_starts_nothing(tmp_path):
    done = launch(tmp_path, "--servers", "1", "--dry-run", "none")
    assert done.returncode == 0, done.stderr
    assert "1 script on 4 processes" in done.stdout
    assert "done" not in done.stdout
    (plan,) = tmp_path.glob("results/scripts/launch/*/conf.plan.json")
    assert '"script.py"' in plan.read_text()


def test_a_program_that_does_not_exist(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "hpcps", "launch", "-n", "1", "no-such-program"],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    assert "no-such-program: no such program" in done.stdout


def test_importing_hpcps_imports_no_torch():
    code = "import sys, hpcps, hpcps.session.join, hpcps.cli.main; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
