"""Runs that a tracker follows: with TensorBoard, whose package every environment has."""

import os
import signal
import subprocess
import sys
import time

import pandas as pd
import pytest
from small_experiment import small_experiment
from test_export import scalars

from hpcps.cli.main import main
from hpcps.errors import RunError
from hpcps.execution import tracking
from hpcps.records.run_directory import RunDirectory
from hpcps.records.tracking import TRACKERS, Tracker, write_runs
from hpcps.spec.load import load_experiment

pytestmark = pytest.mark.usefixtures("starts_processes")

TRACKING = '[tracking]\nto = ["tensorboard"]\n'


def hpcps(folder, *words):
    done = subprocess.run(
        [sys.executable, "-m", "hpcps", *map(str, words)], capture_output=True, text=True, timeout=300, cwd=folder
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def values(folder):
    """Return the values of the only run by tag: (round, value) pairs."""
    (run,) = folder.iterdir()
    found = scalars(run)
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


@pytest.mark.parametrize("transport", [pytest.param("inproc", marks=pytest.mark.soak), "mpi"], ids=["one", "several"])
def test_a_run_that_was_followed_is_as_if_it_was_exported(tmp_path, transport, monkeypatch):
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    text = small_experiment("small", {"transport.kind": transport}, TRACKING)
    (tmp_path / "small.toml").write_text(text)
    assert hpcps(tmp_path, "run", "small.toml").stderr == ""
    live = values(tmp_path / "results" / "small" / "export" / "tensorboard")
    monkeypatch.chdir(tmp_path)
    assert main(["export", "small", "--to", "tensorboard", "-o", "out"]) == 0
    assert live == values(tmp_path / "out")
    assert len(live["evaluation/accuracy"]) == 2
    assert len(live["worker-1/loss"]) == len(live["worker-0/loss"]) > 2


def test_a_tracker_that_fails_does_not_end_a_run(tmp_path):
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    (tmp_path / "small.toml").write_text(small_experiment("small", tables=TRACKING))
    (tmp_path / "results" / "small" / "export").mkdir(parents=True)
    (tmp_path / "results" / "small" / "export" / "tensorboard").touch()
    done = hpcps(tmp_path, "run", "small.toml")
    assert done.stderr.count("hpcps: warning: the tracker tensorboard failed: ") == 1
    assert "`hpcps export --to tensorboard` writes them later" in done.stderr
    (run,) = (tmp_path / "results" / "small" / "runs").iterdir()
    assert RunDirectory(run).done


def test_trackers_that_do_not_end_are_killed(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(tracking, "_END", 0.5)
    (tmp_path / "small.toml").write_text(small_experiment("small", tables=TRACKING))
    (point,) = load_experiment(tmp_path / "small.toml").points
    with tracking.TrackingProcess() as followed, followed.of(point.run, RunDirectory(tmp_path / "runs" / "x")):
        process = followed._process
        assert process is not None
        os.kill(process.pid, signal.SIGSTOP)
    assert process.returncode == -signal.SIGKILL
    assert "did not end within 0.5 s and were killed" in capfd.readouterr().err


def test_a_tracker_that_does_not_read_holds_up_no_sweep(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr(tracking, "_END", 0.5)
    (tmp_path / "small.toml").write_text(small_experiment("small", tables=TRACKING))
    (point,) = load_experiment(tmp_path / "small.toml").points
    with tracking.TrackingProcess() as followed:
        for number in range(2000):
            with followed.of(point.run, RunDirectory(tmp_path / "runs" / f"{number}")):
                if number == 0:
                    os.kill(followed._process.pid, signal.SIGSTOP)
    assert "did not end within 0.5 s and were killed" in capfd.readouterr().err


def test_a_tracker_that_hangs_ends_after_the_process_of_the_run(tmp_path):
    """The process that trains was killed, and nobody waits for the trackers."""
    script = (
        "import signal, sys, time\n"
        "from hpcps.execution import tracking\n"
        "tracking._END = 1.0\n"
        "tracking.Trackers.open = lambda *_: time.sleep(600)\n"
        "tracking.main()\n"
    )
    request = b'{"run": "results/x/runs/0", "to": ["tensorboard"]}\n'
    follower = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, cwd=tmp_path)
    follower.stdin.write(request)
    follower.stdin.flush()
    time.sleep(1.0)
    follower.stdin.close()
    try:
        assert follower.wait(10) == -signal.SIGALRM
    finally:
        follower.kill()


def test_records_that_cannot_be_read_are_one_sentence(tmp_path):
    script = (
        "from hpcps.execution import tracking\n"
        "tracking.FollowedRun.look = lambda *_, **__: open('gone')\n"
        "tracking._END = 600\n"  # importing TensorBoard takes longer than its limit on a machine with much to do
        "tracking.main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=b'{"run": "results/x/runs/0", "to": ["tensorboard"]}\n{}\n',
        cwd=tmp_path,
        capture_output=True,
        timeout=250,
        check=False,
    )
    (line,) = done.stderr.decode().splitlines()
    assert line.startswith("hpcps: warning: the experiment trackers ended: ")
    assert "gone" in line
    assert line.endswith("`hpcps export` writes what they lack")


class Unreachable(Tracker):
    """A tracker whose server does not answer."""

    name, variable, hint = "tensorboard", "TRACKER_ADDRESS", ""

    def begin(self, run):
        raise ValueError("no route\nto the server")

    def log(self, scalars):
        pass

    def end(self, *, done):
        pass


def test_an_error_of_the_package_of_a_tracker_is_one_sentence(tmp_path, monkeypatch):
    pytest.importorskip("tensorboardX", reason="tensorboardX is not installed")
    monkeypatch.setenv("TRACKER_ADDRESS", "far away")
    frame = pd.DataFrame({"run_id": ["1"], "label": ["a"], "experiment": ["x"], "event": ["end"], "status": ["done"]})
    with pytest.raises(RunError, match=r"^the tracker tensorboard \(TRACKER_ADDRESS=far away\) failed: .*no route"):
        write_runs(frame, tmp_path, Unreachable(tmp_path))


@pytest.mark.parametrize("mode", ["disabled", "foo"])
def test_a_mode_of_wandb_that_writes_nothing_is_refused(mode, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", mode)
    with pytest.raises(RunError, match=f"WANDB_MODE={mode}: hpcps writes to offline, online or shared"):
        TRACKERS["wandb"](tmp_path)


def test_a_tracker_is_no_part_of_a_run(tmp_path):
    ids = set()
    for tables in ("", TRACKING, '[tracking]\nto = ["mlflow", "wandb"]\n'):
        (tmp_path / "small.toml").write_text(small_experiment("small", tables=tables))
        ids |= {point.run_id for point in load_experiment(tmp_path / "small.toml").points}
    assert len(ids) == 1
