"""Runs whose hosts cannot be reached for a while: they go on without what is there, and replay to the same bits."""

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from host_namespaces import HostNamespaces
from running_processes import processes, within
from small_experiment import small_experiment

from hpcps.cli.main import main
from hpcps.records.files import read_lines
from hpcps.records.run_directory import RunDirectory

pytestmark = [pytest.mark.usefixtures("starts_processes"), pytest.mark.soak]

ROOT = Path(__file__).parents[2]
AFTER = 5.0
"""`survive.after`: an outage that is longer is a loss of all processes of the host."""
PACED = '[[heterogeneity.classes]]\nname = "paced"\nworkers = [0, 1, 2, 3]\nseconds = 0.1'
KEYS = {
    **{"topology.workers": 4, "topology.validators": 2, "topology.servers": 2, "transport.kind": "pslite"},
    **{"data.limit": 192, "train.epochs": 150, "survive.after": AFTER, "transport.timeout": 60},
    **{f"survive.{role}": True for role in ("workers", "validators", "servers")},
}


@pytest.mark.parametrize("seed", range(5))
def test_links_go_down_and_up(seed, tmp_path, capsys):
    """The scheduler is on the first host, so that others lose their links, three times, each for some seconds."""
    chance, hosts = random.Random(seed), HostNamespaces(tmp_path, 3)
    hosts.start()
    try:
        (tmp_path / "small.toml").write_text(small_experiment("small", {**KEYS, "seed": seed}, PACED))
        (tmp_path / "hosts").write_text("".join(f"{name} slots=4\n" for name in hosts.names))
        words = [*hosts.enter, sys.executable, "-m", "hpcps", "run", "small.toml", "--hostfile", "hosts"]
        environment = {**os.environ, "PATH": f"{hosts.path}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
        with (tmp_path / "output").open("w") as output:
            process = subprocess.Popen(
                words, cwd=tmp_path, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL
            )

        def text():
            return (tmp_path / "output").read_text()

        def rounds():
            assert process.poll() is None, text()
            files = tmp_path.glob("results/small/runs/*/records/server-0.jsonl")
            return [line["round"] for file in files for line in read_lines(file).lines if line["event"] == "round"]

        within(90, lambda: len(rounds()) > 5, text)
        longer = 0
        for _ in range(3):
            host, seconds = chance.choice((2, 3)), chance.choice((2.0, 8.0, 10.0))
            longer += seconds > AFTER + 1.0
            hosts.link(host, "down")
            time.sleep(seconds)
            hosts.link(host, "up")
            last = rounds()[-1]
            within(90, lambda last=last: rounds()[-1] > last + 20, text)
            time.sleep(chance.uniform(2.0, 6.0))
        assert process.wait(300) == 0, text()
        within(30, lambda: not processes(str(tmp_path)), lambda: processes(str(tmp_path)))
    finally:
        for pid in processes(str(tmp_path)):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        hosts.stop()
    assert "Traceback" not in text()
    (path,) = tmp_path.glob("results/small/runs/*")
    assert RunDirectory(path).done
    events = [line["event"] for file in path.glob("records/*.jsonl") for line in read_lines(file).lines]
    lost = [event for event in events if event in ("lost", "took_over", "standby_lost")]
    assert len(lost) >= longer
    capsys.readouterr()
    assert main(["replay", str(tmp_path / "small.toml"), "--results", str(tmp_path / "results")]) == 0
    assert " are equal, and the final model (" in capsys.readouterr().out
