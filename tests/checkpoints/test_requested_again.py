"""`--no-resume` executes runs again from the start; each stays done until it begins."""

import json

import pytest
from interrupted import Crash
from small_experiment import small_experiment

from hpcps.cli.main import main
from hpcps.errors import RunError
from hpcps.execution import role_driver
from hpcps.execution.sweep import batch
from hpcps.records.run_directory import RunDirectory
from hpcps.records.status import SweepProgress


@pytest.fixture
def run(tmp_path):
    """Return a function that executes an experiment with two runs, and returns its exit status."""
    file = tmp_path / "twice.toml"
    keys = {"train.epochs": 3, "checkpoint.every": 1}
    file.write_text(small_experiment("twice", keys, "[[sweep]]\nseed = [1, 2]"))
    return lambda *options: main(["run", str(file), "--results", str(tmp_path / "results"), *options])


@pytest.fixture
def done(run, tmp_path):
    """Return the folders of the two runs, which are done."""
    assert run() == 0
    found = [RunDirectory(path) for path in (tmp_path / "results/twice/runs").iterdir()]
    return sorted(found, key=lambda directory: directory.spec["index"])


def crash(run, first, monkeypatch):
    """Execute both runs again; the process is gone after a checkpoint of the first."""
    step = role_driver.RoleDriver.step

    def checked(self):
        if first.checkpoints.positions():
            raise Crash
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(role_driver.RoleDriver, "step", checked)
        with pytest.raises(Crash):
            run("--no-resume")


def starts(directory):
    lines = [json.loads(line) for line in (directory.path / "records/server-0.jsonl").read_text().splitlines()]
    return [line for line in lines if line["event"] == "start"]


@pytest.mark.thorough
def test_a_run_stays_done_until_it_begins(run, done, monkeypatch, capsys):
    first, second = done
    kept = (second.path / "DONE").read_text()
    crash(run, first, monkeypatch)
    assert [directory.done for directory in done] == [False, True]
    assert [status.state for status in SweepProgress([each.path for each in done]).poll()] == ["running", "done"]
    capsys.readouterr()
    assert run() == 0
    assert "\n[1/1] seed 1 " in capsys.readouterr().out
    assert [len(starts(directory)) for directory in done] == [3, 1]
    assert "continues" in starts(first)[-1], "what `--no-resume` has begun goes on"
    assert (second.path / "DONE").read_text() == kept
    assert run() == 0
    assert "2 of 2 runs are done already" in capsys.readouterr().out


def test_a_successor_of_the_job_executes_what_is_left(run, done, monkeypatch):
    crash(run, done[0], monkeypatch)
    monkeypatch.setenv("HPCPS_SUCCESSOR", "1")
    assert run("--no-resume") == 0
    assert ["continues" in starts(directory)[-1] for directory in done] == [True, False]
    assert [len(starts(directory)) for directory in done] == [3, 2]
    assert not any(directory.pending for directory in done)
    assert run("--no-resume") == 0
    assert [len(starts(directory)) for directory in done] == [3, 2]


@pytest.mark.thorough
def test_checkpoints_are_used_only_without_the_option(run, done, monkeypatch, capsys):
    crash(run, done[0], monkeypatch)
    capsys.readouterr()
    assert run("--no-resume", "--only", "0") == 0
    said = capsys.readouterr().out
    assert "1 run to execute" in said
    assert said.count("[1/1]") == 1
    assert "continues" not in starts(done[0])[-1]
    assert [directory.pending for directory in done] == [False, True], "nobody has withdrawn the second request"
    assert run() == 0
    assert not done[1].pending


def test_a_run_that_could_not_begin_has_failed(run, done, monkeypatch):
    def fail(*_, **__):
        raise RunError("no such host")

    monkeypatch.setattr(batch, "execute_point", fail)
    assert run("--no-resume") == 1
    assert all(directory.done for directory in done)
