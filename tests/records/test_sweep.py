"""What is known of a sweep of which not everything has been played."""

import json
import re
import shutil
from pathlib import Path

import pytest
from small_experiment import small_experiment

from hpcps.cli.main import main
from hpcps.records.collect import collect
from hpcps.records.forecast import summary
from hpcps.records.locate import load_points
from hpcps.records.run_directory import RunDirectory
from hpcps.records.status import SweepProgress
from hpcps.records.sweep import write_sweep
from hpcps.records.variants import in_words
from hpcps.records.writer import RecordWriter
from hpcps.spec.load import load_experiment

SWEEP = '[[sweep]]\n"train.optimizer.lr" = [0.01, 0.1, 0.2]\n[[sweep]]\nseed = [1, 2]\n'
FILE = small_experiment("sweep", {"topology.validators": 0, "topology.workers": 1, "train.epochs": 1}, SWEEP)


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sweep.toml").write_text(FILE)
    return tmp_path / "results" / "sweep"


def run(*arguments):
    return main(["run", "sweep.toml", *arguments])


def shown(capsys, *arguments):
    capsys.readouterr()
    assert main([*arguments]) == 0
    return capsys.readouterr().out


def test_a_dry_run_leaves_no_run(results, capsys):
    assert run("--dry-run") == 0
    assert not list(results.glob("runs/*"))
    assert shown(capsys, "status") == "no runs in results/\n"


def test_a_dry_run_of_what_is_done_shows_its_launch_all_the_same(results, capsys):
    assert run("--only", "0") == 0
    printed = shown(capsys, "run", "sweep.toml", "--only", "0", "--dry-run", "--set", "transport.kind=inproc")
    assert "all 1 runs are done already; these are the launch files of all of them" in printed
    assert "would run in this process" in printed


@pytest.mark.thorough
def test_status_collect_and_figures_know_what_has_not_been_played(results, capsys):
    assert run("--only", "0-2") == 0
    status = shown(capsys, "status", "results/sweep")
    assert status.startswith("sweep: 6 runs: 3 done, 3 not started; 50 % of all epochs\n")
    assert "lr 0.2 · seed 2" in status
    assert "6 runs: 3 done, 3 not started\n" in shown(capsys, "collect", "results/sweep")
    table = (results / "final_accuracy.md").read_text()
    heading = table.split("\n")[1].split(" · ")
    assert "2 seeds" in heading
    assert "3 of 6 runs unfinished (3 without a result)" in heading
    assert "(1 of 2 seeds)" in table
    assert "| 0.2 " in table
    assert "no result yet: lr 0.1 · seed 2, lr 0.2 · seed 1, lr 0.2 · seed 2" in table
    # From the table alone, as it is published.
    (results.parent.parent / "sweep.toml").unlink()
    assert "3 of 6 runs unfinished" in shown(capsys, "plot", str(results / "table.parquet"))


@pytest.mark.thorough
def test_a_point_that_is_removed_from_the_file_is_forgotten(results, capsys):
    assert run("--only", "0-1") == 0
    file = results.parent.parent / "sweep.toml"
    file.write_text(FILE.replace("[0.01, 0.1, 0.2]", "[0.01, 0.1]"))
    # What was to be played is what the file says now, launched again or not.
    assert "4 runs: 2 done, 2 not started" in shown(capsys, "collect", "results/sweep")
    file.write_text(FILE.replace("[0.01, 0.1, 0.2]", "[0.01]"))
    assert run() == 0
    file.unlink()
    assert "2 runs: 2 done\n" in shown(capsys, "collect", "results/sweep")
    assert shown(capsys, "status").startswith("sweep: 2 runs: 2 done\n")


@pytest.mark.thorough
def test_what_set_makes_of_a_file_is_a_sweep_of_its_own(results, capsys):
    assert run("--only", "0-1") == 0
    assert run("--set", "seed=1", "--set", "train.epochs=2", "--only", "0") == 0
    states = {
        (run.label, run.status) for run in collect(results, load_points(results.parent.parent / "sweep.toml")[1]).runs
    }
    assert {label for label, status in states if status == "done"} == {
        "lr 0.01 · seed 1",
        "lr 0.01 · seed 2",
        "lr 0.01",
    }
    assert len(collect(results).runs) == 6 + 3
    # Once its last run is gone, nothing of it is expected any more.
    for folder in results.glob("runs/*"):
        if json.loads((folder / "spec.json").read_text())["run"]["train"]["epochs"] == 2:
            shutil.rmtree(folder)
    assert len(collect(results).runs) == 6


def test_results_without_a_sweep_are_what_they_were(results, capsys):
    assert run("--only", "0-2") == 0
    shutil.rmtree(results / "sweeps")
    assert "3 runs: 3 done\n" in shown(capsys, "collect", "results/sweep")
    assert "missing" not in collect(results).table.attrs


def test_a_folder_that_is_only_reserved_is_no_run(results, capsys):
    assert run("--only", "0-2") == 0
    (results / "runs" / "00000000ff").mkdir()
    (results / "runs" / "00000000ff" / ".lock").touch()
    assert "00000000ff" not in shown(capsys, "status", "results/sweep")


@pytest.mark.thorough
def test_epochs_of_runs_that_nobody_knows_are_counted(results):
    assert run("--only", "0") == 0
    done = next(results.glob("runs/*"))
    runs = SweepProgress([done, *(results / "runs" / f"{n:010x}" for n in range(3))]).poll()
    assert summary(runs) == "4 runs: 1 done, 3 not started; 25 % of all epochs"
    many = SweepProgress([done] * 999 + [results / "runs" / "0000000000"]).poll()
    assert "99 % of all epochs" in summary(many)


def test_points_that_have_not_run_are_of_the_variant_of_the_others(tmp_path):
    """Of splits whose shards differ, the code once held out another shard; that is no variant of what is planned."""
    file = tmp_path / "planned.toml"
    file.write_text(
        small_experiment("planned", {"data.split": "by_class", "train.epochs": 1}, "[[sweep]]\nseed = [1, 2]\n")
    )
    assert main(["run", str(file), "--only", "0", "--results", str(tmp_path)]) == 0
    table = collect(tmp_path / "planned", load_points(file)[1]).table
    assert [point["variant"] for point in table.attrs["missing"]] == [""]
    assert set(table["variant"].astype(str)) == {""}


def test_swept_booleans_are_words():
    specs = [{"run": {"train": {"abandon": value}}} for value in (True, False)]
    assert in_words(specs, "train.abandon") == ["true", "false"]


def record(results, *overrides):
    """Leave the folders of the sweep with some values of `--set`, as its runs leave them at their start."""
    points = [point.spec for point in load_experiment(Path("sweep.toml"), overrides).points]
    write_sweep(results, Path("sweep.toml"), overrides, points)
    for point in points:
        run = RunDirectory(results / "runs" / point["run_id"])
        run.create(point)
        with RecordWriter(run.path, point["run_id"], "worker", 0, "host") as line:
            line.write("start")


ALONE = FILE.replace(SWEEP, "")


def test_status_tells_seeds_apart(results, capsys):
    Path("sweep.toml").write_text(ALONE)
    record(results)
    for seed in (2, 3):
        record(results, f"seed={seed}")
    lines = shown(capsys, "status", "sweep.toml").splitlines()
    assert {line.split("  ")[1] for line in lines[2:5]} == {f"sweep (seed={seed})" for seed in (1, 2, 3)}


def test_status_states_no_defaults_of_a_component(results, capsys):
    Path("sweep.toml").write_text(ALONE)
    record(results)
    record(results, 'server.optimizer={kind="adam"}', 'attack={kind="negative",rate=0.3}')
    shown_now = shown(capsys, "status", "sweep.toml")
    assert "sweep (server.optimizer.kind=adam attack.kind=negative attack.rate=0.3)" in shown_now
    assert "beta" not in shown_now


def test_a_long_label_moves_no_other_row(results, capsys):
    Path("sweep.toml").write_text(ALONE)
    record(results)
    record(results, 'server.optimizer={kind="adam",lr=0.5,tau=0.1,beta1=0.5}', 'attack={kind="negative",rate=0.3}')
    _, head, *lines = shown(capsys, "status", "sweep.toml").splitlines()
    assert max(map(len, lines)) > 100
    assert len(head) < 100


def test_only_finds_runs_with_other_values_where_no_others_have_started(results, capsys):
    Path("sweep.toml").write_text(ALONE)
    record(results, "seed=2")
    record(results, "seed=3")
    status = shown(capsys, "status", "sweep.toml", "--only", "0")
    assert status.startswith("sweep: 2 runs")
    assert main(["replay", "sweep.toml", "--only", "0"]) == 1
    assert len(re.findall("^[0-9a-f]{10}  ", capsys.readouterr().out, re.MULTILINE)) == 2
    record(results)
    assert shown(capsys, "status", "sweep.toml", "--only", "0").startswith("sweep: 1 run:")
