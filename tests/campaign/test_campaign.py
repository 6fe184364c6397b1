"""Sweeps of real runs, some of which fail, one after another and two at a time."""

import os
import shutil
from pathlib import Path

import pytest
from small_experiment import small_experiment

from hpcps.cli.main import main
from hpcps.records.files import read_lines
from hpcps.records.locate import run_folder
from hpcps.records.run_directory import RunDirectory
from hpcps.spec.load import load_experiment

SWEEP = small_experiment(
    "many",
    {"topology.validators": 0, "topology.workers": 1, "train.batch_size": 16, "train.local_steps": 2},
    "[[sweep]]\nseed = [1, 2, 3]\n",
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "many.toml"
    path.write_text(SWEEP)
    return path


def folders(file: Path, *overrides: str) -> list[RunDirectory]:
    results = file.parent / "results"
    return [RunDirectory(run_folder(point, results)) for point in load_experiment(file, overrides).points]


def block(directory: RunDirectory) -> Path:
    """Put a file where the run will want a folder for its model."""
    directory.path.mkdir(parents=True)
    (directory.path / "final").touch()
    return directory.path / "final"


def run(file: Path, *arguments: str) -> int:
    return main(["run", str(file), "--results", str(file.parent / "results"), *arguments])


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core only")
def test_a_failed_run_does_not_stop_the_others(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = folders(file)[:2]
    block(runs[0])
    two = ("--only", "0-1")
    assert run(file, *two, "--jobs", "2", "--retry", "1") == 1
    shown = capsys.readouterr().out
    assert [directory.done for directory in runs] == [False, True]
    run_id = runs[0].path.name
    assert f"hpcps: {run_id}: tried again, 1 of 1 times\n" in shown
    head, last = shown.splitlines()[-2:]
    assert head == "hpcps: 1 of 2 runs failed:"
    assert last.startswith(f"  {run_id}  seed 1: in 2 attempts: server-0 on ")
    # Each attempt is on record, and so is what ended it.
    assert [failure.error[:15] for failure in (*runs[0].failures, *runs[0].earlier_failures)] == ["FileExistsError"] * 2
    assert [line["attempt"] for line in read_lines(runs[0].records[0]).lines if line["event"] == "start"] == [1, 2]

    # What was in the way is gone: only that run is played, and nothing is left to tell.
    (runs[0].path / "final").unlink()
    assert run(file, *two) == 0
    assert "many: 1 of 2 runs are done already" in capsys.readouterr().out
    assert runs[0].done
    assert [directory.failures for directory in runs] == [()] * 2
    assert len(runs[0].earlier_failures) == 2


def test_a_run_that_lost_a_file_is_played_again(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, "--only", "0-1") == 0
    first, second, *_ = folders(file)
    shutil.rmtree(first.path / "records")
    (second.path / "final" / "server-0.npy").unlink()
    capsys.readouterr()
    assert run(file, "--only", "0-1") == 0
    shown = capsys.readouterr().out
    lost = ("records/worker-0.jsonl, records/server-0.jsonl", "final/server-0.npy")
    for directory, what, seed in zip((first, second), lost, (1, 2), strict=True):
        name = f"{directory.path.name} (seed {seed})"
        assert f"many: {name}: it is marked as done, but it lacks {what}: it runs again; its files move" in shown
        assert directory.done


@pytest.mark.usefixtures("starts_processes")
def test_over_mpi_what_is_left_gets_a_launch_of_its_own(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    over_mpi = "transport.kind=mpi"
    runs = folders(file, over_mpi)
    block(runs[1])
    block(runs[2])
    assert run(file, "--set", over_mpi) == 1
    assert [directory.done for directory in runs] == [True, False, False]
    shown = capsys.readouterr().out
    assert "hpcps: continuing with 1 more run\n" in shown
    assert "hpcps: 2 of 3 runs failed:\n" in shown
    (launch,) = (file.parent / "results" / "many" / "launch").glob("*")
    assert {path.name for path in launch.glob("*plan.json")} == {"conf.plan.json", "conf-2.plan.json"}


@pytest.mark.usefixtures("starts_processes")
def test_a_launcher_that_cannot_start_anything_is_not_asked_for_every_run(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mpirun = tmp_path / "mpirun"
    asked = tmp_path / "asked"
    version = "[ $1 = --version ] && echo 'HYDRA build details: Version: 4.2' && exit"
    mpirun.write_text(f"#!/bin/sh\n{version}\necho x >> {asked}\nexit 9\n")
    mpirun.chmod(0o755)
    assert run(file, "--set", "transport.kind=mpi", "--mpirun", str(mpirun)) == 1
    assert asked.read_text() == "x\n"
    shown = capsys.readouterr().out
    assert "hpcps: 3 of 3 runs failed:" in shown
    assert shown.count("the launcher ended with status 9") == 4


def test_counts_that_make_no_sense_are_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for option, value in (("--jobs", "0"), ("--retry", "-1"), ("--jobs", "two")):
        with pytest.raises(SystemExit, match="2"):
            run(file, f"{option}={value}")
        assert f"argument {option}: expects a whole number ≥ " in capsys.readouterr().err
    assert run(file, "--jobs", str(len(os.sched_getaffinity(0)) + 1)) == 2
    assert "use at most --jobs" in capsys.readouterr().err
    hosts = file.with_name("hosts")
    hosts.write_text("n01\n")
    over_mpi = ("--set", "transport.kind=mpi")
    assert run(file, "--jobs", "2", "--hostfile", str(hosts), *over_mpi) == 2
    assert "on the hosts of a host file one launch runs at a time" in capsys.readouterr().err
    assert not list(file.parent.glob("results/many/runs/*/DONE"))


def test_what_is_odd_is_told_of_the_points_selected(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    odd = '[[include]]\nlabel = "odd"\ntopology.workers = 2\nvalidation.rule.kind = "phocas"\n'
    file.write_text(file.read_text() + odd)
    for selected, told in {"odd": 1, "0": 0}.items():
        assert run(file, "--only", selected, "--dry-run") == 0
        assert capsys.readouterr().err.count("hpcps: warning: ") == told


def test_arguments_from_a_file(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """qsub removes quotes from the variables of a job."""
    arguments = file.with_name("arguments")
    arguments.write_text("--dry-run  # as for a shell\n\n--set 'attack={kind = \"random\", rate = 1.5}'\n")
    assert run(file, f"@{arguments}") == 2
    assert '--set attack={kind = "random", rate = 1.5}: attack.rate: ' in capsys.readouterr().err
    for text, message in {
        "--set 'x": "no closing quotation in the line of an @FILE: --set 'x",
        None: "No such file",
    }.items():
        arguments.unlink() if text is None else arguments.write_text(text)
        with pytest.raises(SystemExit, match="2"):
            run(file, f"@{arguments}")
        assert message in capsys.readouterr().err
