"""What a launch makes of what it finds: `auto` takes what works and says why, and what is demanded is not replaced."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILE = """
name = "buffers"
[topology]
validators = 0
workers = 1
[model]
name = "mlp"
[data]
name = "digits"
limit = 64
test_limit = 32
[train]
epochs = 1
batch_size = 16
"""


@pytest.fixture
def run(tmp_path):
    """Execute the experiment on a device; return the exit status, what it printed, and a record's first line."""

    def execute(device, *settings):
        file, results = tmp_path / "buffers.toml", tmp_path / f"{device}{len(settings)}"
        file.write_text(FILE)
        command = [sys.executable, "-m", "hpcps", "run", str(file), "--results", str(results)]
        command += [word for setting in settings for word in ("--set", setting)]
        done = subprocess.run(command, env=environment(device), capture_output=True, text=True)
        starts = [path.read_text().partition("\n")[0] for path in results.glob("*/runs/*/records/server-0.jsonl")]
        return done.returncode, done.stdout + done.stderr, json.loads(starts[0]) if starts else None

    return execute


def environment(device):
    path = os.pathsep.join([str(HERE.parents[1]), str(HERE)])
    return {**os.environ, "PYTHONPATH": path, "HPCPS_DEVICE": f"late_device:{device}"}


def test_auto_takes_mpi_where_that_works(run):
    status, said, found = run("open_device")
    assert status == 0
    assert "copied" not in said
    assert (found["device_buffers"], found["device_buffers_direct"]) == ("direct", ["worker-0"])
    assert found["device_buffers_why"] == "MPI takes the memory of this device"


def test_auto_copies_through_the_host_where_nothing_works_and_says_why_once(run):
    status, said, found = run("BadPointer")
    assert status == 0
    assert found["device_buffers"] == "staged"
    assert "through MPI: mpirun " in found["device_buffers_why"]
    assert (
        said.count(f"hpcps: updates and models on devices are copied through the host: {found['device_buffers_why']}\n")
        == 1
    )


@pytest.mark.soak
def test_without_a_device_there_is_nothing_to_say(run):
    status, said, found = run("NoDevice")
    assert status == 0
    assert "copied" not in said
    assert found["device_buffers"] == "staged"
    assert found["device_buffers_why"].startswith("this machine has no such device (")


def test_what_is_demanded_is_not_replaced(run):
    status, said, _ = run("NoDevice", "transport.device_buffers=direct")
    assert status == 1
    assert 'transport.device_buffers = "direct": this machine has no such device (worker-0 on localhost); ' in said
