"""Processes of MPICH that are killed on the second of two hosts, which `pbs_tmrsh` reaches."""

import json
import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from cluster import make_cluster
from environments import interpreter

ENDLESS = """
name = "hosts"
[topology]
workers = 1
servers = 3
validators = 0
[model]
name = "mlp"
[data]
name = "digits"
limit = 320
test_limit = 32
[train]
epochs = 20_000
batch_size = 16
"""


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def mine(tmp_path):
    """Find the processes of this launch: their ids."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if f"{tmp_path}/results".encode() in text:
            found.append(int(entry.name))
    return found


@pytest.fixture
def play(tmp_path):
    """Start a run on two hosts, two roles on each; return the process and the first lines of the records."""
    cluster = make_cluster(tmp_path, hosts=2)
    (tmp_path / "nodefile").write_text("node1\nnode1\nnode2\nnode2\n")
    (tmp_path / "hosts.toml").write_text(ENDLESS)
    command = [interpreter("mpich"), "-m", "hpcps", "run", tmp_path / "hosts.toml"]
    command += ["--hostfile", tmp_path / "nodefile", "--results", tmp_path / "results"]
    process = subprocess.Popen(
        [*cluster.enter, *command], env=cluster.of_job, cwd=tmp_path, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 100
    while len(first := firsts(tmp_path)) < 4:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    yield process, first
    for pid in mine(tmp_path):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=90)


def firsts(tmp_path):
    found = {}
    for record in tmp_path.glob("results/*/runs/*/records/*.jsonl"):
        lines = record.read_text().splitlines()
        if len(lines) > 3:
            found[record.stem] = json.loads(lines[0])
    return found


def test_a_launchers_process_that_was_killed_there_is_named(play, tmp_path):
    process, first = play
    who = next(name for name, line in first.items() if line["host"] == "node2")
    proxy = parent(parent(first[who]["pid"]))
    files = {name: topology_files(parent(parent(line["pid"]))) for name, line in first.items()}
    os.kill(proxy, signal.SIGKILL)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 1, output
    end = "the launcher's process on node2 died, and with it all 2 processes there"
    assert re.search(rf"hpcps: run \w+ \(hosts\): \w+-\d on node2 failed .*: {end}\n", output), output
    deadline = time.monotonic() + 20
    while mine(tmp_path):
        assert time.monotonic() < deadline, mine(tmp_path)
        time.sleep(0.05)
    assert len(files) == 4
    for name, (file,) in files.items():
        assert not Path(file).exists(), f"of {name}"


def topology_files(proxy):
    links = [os.readlink(entry) for entry in Path(f"/proc/{proxy}/fd").iterdir()]
    return [link.removesuffix(" (deleted)") for link in links if link.startswith("/tmp/hydra_hwloc_xmlfile_")]
