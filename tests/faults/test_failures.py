"""Exceptions inside a role: what cannot be written, and what vanishes, while a run is under way."""

import json
import re
import resource
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_runs import Play, assert_blamed, assert_quiet
from running_processes import within

from hpcps.cli.main import main
from hpcps.records.run_directory import RunDirectory

pytestmark = pytest.mark.usefixtures("starts_processes")

HOST = socket.gethostname()


def test_one_process_runs_out_of_room(start: Callable[..., Play]) -> None:
    play = start("--set", "topology.servers=2")
    play.until("server-1", round=40)
    record = play.run.path / "records" / "server-1.jsonl"
    # What a full disk or a used-up quota does, to this process alone; there is still room for a report of it.
    room = record.stat().st_size
    resource.prlimit(play.pid("server-1"), resource.RLIMIT_FSIZE, (room, room))
    assert play.end() > 0
    assert play.left() == {}
    assert_quiet(play.text)
    assert_blamed(play.text, play.run, "server-1", "RunError: ")
    why = rf"(cannot write to )?the record {record}.*free disk space and run again"
    assert re.search(rf"hpcps: server-1 on {HOST} failed in round \d+ \(\w+\) of run \w+: {why}", play.text)
    report = json.loads((play.run.path / "failure" / "server-1.json").read_text())
    assert report["traceback"].startswith("Traceback (most recent call last)")
    assert re.search(why, report["traceback"])


@pytest.mark.parametrize("name", [pytest.param("provenance.json", marks=pytest.mark.soak), "records/server-0.jsonl"])
def test_what_is_in_the_way_is_named(name: str, start: Callable[..., Play], experiment: Path) -> None:
    folder = planned_folder(experiment)
    (folder / name).mkdir(parents=True)
    play = start()
    assert play.end(120) > 0
    assert play.left() == {}
    assert_quiet(play.text)
    who = "server-0" if "server" in name else "worker-0"
    assert re.search(rf"hpcps: run \w+ \(faults\): {who} on {HOST} failed .*phase start: .*{name}", play.text)
    assert play.run.failures[0].role == who.partition("-")[0]


def test_an_exception_in_one_process(experiment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    brief = ("--set", "transport.kind=inproc", "--set", "train.epochs=2")
    folder = planned_folder(experiment, *brief)
    folder.mkdir(parents=True)
    (folder / "final").touch()
    assert main(["run", str(experiment), "--results", str(folder.parents[2]), *brief]) == 1
    shown = capsys.readouterr()
    assert_quiet(shown.out + shown.err)
    assert f"hpcps: run {folder.name} (faults): server-0 on {HOST} failed in round 10 (save): " in shown.out
    report = json.loads((folder / "failure" / "server-0.json").read_text())
    assert report["error"].startswith("FileExistsError: ")
    assert report["traceback"].startswith("Traceback (most recent call last)")


# A second of training in fifty rounds.
BRIEF = ("data.limit=1437", "train.local_steps=44", "train.epochs=50", "checkpoint.every=5")


def test_a_run_whose_folder_is_deleted_fails_and_is_executed_again(start: Callable[..., Play], tmp_path: Path) -> None:
    options = [part for text in BRIEF for part in ("--set", text)]
    play = start(*options)
    within(60, lambda: list(play.results.glob("*/runs/*/checkpoints/*/manifest.json")), "a checkpoint")
    path = play.run.path
    path.rename(tmp_path / "taken away")
    shutil.rmtree(tmp_path / "taken away")
    assert play.end() == 1
    assert not (path / "DONE").exists()
    assert "was deleted or moved during the run" in play.text
    assert_quiet(play.text)

    again = start(*options)
    assert again.end() == 0, again.text
    assert "done already" not in again.text
    assert RunDirectory(path).done
    assert again.lines("worker-0")[-1]["reason"] == "finished"


def planned_folder(experiment: Path, *overrides: str) -> Path:
    """Return where the only run of an experiment will be."""
    from hpcps.records.locate import run_folder
    from hpcps.spec.load import load_experiment

    (point,) = load_experiment(experiment, [text for text in overrides if text != "--set"]).points
    return run_folder(point, experiment.parent / "results")
