"""Processes of MPICH that are killed on the second of two hosts, which `pbs_tmrsh` reaches."""

import json
import os
import re
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest
from cluster import make_cluster
from environments import interpreter
from running_processes import parent, processes, topology_files, within
from small_experiment import small_experiment

pytestmark = pytest.mark.usefixtures("starts_processes")

ENDLESS = {
    "topology.workers": 1,
    "topology.servers": 3,
    "topology.validators": 0,
    "transport.kind": "mpi",
    "data.limit": 320,
    "train.epochs": 20_000,
}


@pytest.fixture
def play(tmp_path):
    """Start a run on two hosts, two roles on each; return the process and the first lines of the records."""
    cluster = make_cluster(tmp_path, hosts=2)
    (tmp_path / "nodefile").write_text("node1\nnode1\nnode2\nnode2\n")
    (tmp_path / "hosts.toml").write_text(small_experiment("hosts", ENDLESS))
    command = [interpreter("mpich"), "-m", "hpcps", "run", tmp_path / "hosts.toml"]
    command += ["--hostfile", tmp_path / "nodefile", "--results", tmp_path / "results"]
    process = subprocess.Popen(
        [*cluster.enter, *command], env=cluster.of_job, cwd=tmp_path, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip

    def begun():
        assert process.poll() is None, process.communicate()
        return len(firsts(tmp_path)) == 4

    within(100, begun, "the start of all four")
    yield process, firsts(tmp_path)
    for pid in processes(f"{tmp_path}/results"):
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
    within(20, lambda: not processes(f"{tmp_path}/results"), lambda: processes(f"{tmp_path}/results"))
    assert len(files) == 4
    for name, (file,) in files.items():
        assert not Path(file).exists(), f"of {name}"
