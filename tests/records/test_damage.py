"""Finished runs whose files are damaged later: the commands name the run and the file, and `run` executes it again."""

import contextlib
import json
import shutil
from pathlib import Path

import pytest
from small_experiment import small_experiment

import hpcps
from hpcps.cli.main import main
from hpcps.errors import RunError
from hpcps.records.run_directory import RunDirectory

FILE = small_experiment("damaged", {"topology.validators": 0, "topology.workers": 1}, "[[sweep]]\nseed = [1, 2]\n")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two finished runs."""
    folder = tmp_path_factory.mktemp("finished")
    (folder / "damaged.toml").write_text(FILE)
    with contextlib.chdir(folder):
        assert main(["run", "damaged.toml"]) == 0
    return folder


@pytest.fixture
def first(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """The first of a copy of the two runs, in the working directory."""
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return RunDirectory(Path("results/damaged/runs", hpcps.load("damaged.toml").ids[0]))


def flip(file: Path) -> bytes:
    """Change one bit in the middle of a file, and return its former content; JSON stays readable."""
    whole = file.read_bytes()
    middle = len(whole) // 2
    if file.suffix == ".json":
        middle = whole.index(b': "', middle) + len(b': "')  # the first letter of a text
    file.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    return whole


def said(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    capsys.readouterr()
    assert main([*arguments]) == status
    return capsys.readouterr().out


def as_before(directory: RunDirectory) -> None:
    """Remove from DONE what an earlier version did not write."""
    done = json.loads((directory.path / "DONE").read_text())
    sizes = {name: None if name.endswith(".json") else size for name, size in done["files"].items()}
    (directory.path / "DONE").write_text(json.dumps({**done, "files": sizes, "sha256": {}}))


@pytest.mark.sample(1, 4)
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["final/server-0.npy", "records/worker-0.jsonl", "spec.json", "provenance.json"])
def test_a_flipped_bit_is_named_and_the_run_is_executed_again(
    name: str, first: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    before = flip(first.path / name)
    damaged = (first.path / name).read_bytes()
    what = f"{first.path.name} (seed 1): it is marked as done, but {name} has changed since the end of the run"
    again = f"damaged: {what}: it runs again; its files move to its folder earlier/\n"
    status = said(capsys, "status", "damaged", "--verify", status=1)
    assert f"  {what.replace(' (seed 1)', '')}: `hpcps run` runs it again" in status
    assert "damaged: 2 runs: 1 damaged, 1 done" in status
    if name == "provenance.json":  # of the others they say the same
        assert f"  {what}: `hpcps run` runs it again\n" in said(capsys, "collect", "damaged")
        assert f"  {what}: `hpcps run` runs it again\n" in said(capsys, "publish", "damaged")
        assert again in said(capsys, "run", "damaged.toml", "--dry-run")
        with pytest.raises(
            RunError, match=f"but {name} has changed since the end of the run: run the experiment again"
        ):
            hpcps.load("damaged.toml").final_model(first.path.name)
    shown = said(capsys, "run", "damaged.toml")
    assert "damaged: 1 of 2 runs are done already and are skipped" in shown
    assert again in shown
    # What was computed is still there, and the new attempt has begun anew.
    aside = first.path / "earlier/damaged-1"
    assert (aside / name).read_bytes() == damaged
    assert {path.name for path in aside.iterdir()} >= {"DONE", "spec.json", "provenance.json", "records", "final"}
    if name == "final/server-0.npy":
        assert (first.path / name).read_bytes() == before
    verified = said(capsys, "status", "damaged", "--verify")
    count = 2 * len(first.checksums)
    assert f"damaged: {count} files of 2 finished runs are as they were written\n" in verified
    assert "2 of 2 runs are done already" in said(capsys, "run", "damaged.toml")


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("content", "swept", "old"),
    [("", True, True), ('{"torn', False, True), ("", False, False), ('{"torn', True, False)],
)
def test_without_a_readable_spec_a_run_is_still_seen(
    content: str, swept: bool, old: bool, first: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [RunDirectory(path) for path in sorted(first.path.parent.iterdir())]
    for directory in runs:
        if old:
            as_before(directory)
        (directory.path / "spec.json").write_text(content)
    if not swept:
        for sweep in Path("results/damaged/sweeps").iterdir():
            sweep.unlink()
    status = said(capsys, "status", "results/damaged")
    for directory in runs:
        lacks = "it is marked as done, but it lacks a readable spec.json"
        assert f"  {directory.path.name}: {lacks}: `hpcps run` runs it again\n" in status
    assert ("seed 1" in status) is swept
    shown = said(capsys, "run", "damaged.toml")
    assert shown.count(": it runs again; its files move to its folder earlier/\n") == 2
    assert all(directory.done and directory.spec for directory in runs)
    assert all((directory.path / "earlier/damaged-1/final/server-0.npy").exists() for directory in runs)


def test_runs_without_settings_are_left_out_of_the_table(
    first: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    (first.path / "spec.json").write_text("")
    for sweep in Path("results/damaged/sweeps").iterdir():
        sweep.unlink()
    Path("damaged.toml").unlink()
    shown = said(capsys, "collect", "results/damaged")
    assert "2 runs: 1 damaged, 1 done\n" in shown
    assert f"  {first.path.name} (settings unknown): it is marked as done, but it lacks a readable spec.json" in shown


def test_a_run_that_an_earlier_version_finished_is_believed(
    first: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    as_before(first)
    flip(first.path / "final/server-0.npy")
    spec = json.loads((first.path / "spec.json").read_text())
    (first.path / "spec.json").write_text(json.dumps({**spec, "note": "mine"}))
    assert "2 of 2 runs are done already" in said(capsys, "run", "damaged.toml")
    status = said(capsys, "status", "damaged", "--verify")
    assert "of 1 finished run are as they were written; 1 finished run of an earlier version has no checksums" in status


def test_an_interrupted_run_without_a_readable_spec_goes_on(
    first: RunDirectory, capsys: pytest.CaptureFixture[str]
) -> None:
    (first.path / "DONE").unlink()
    (first.path / "spec.json").write_text("")
    assert f"  {first.path.name}: it lacks a readable spec.json: `hpcps run`" in said(capsys, "status", "damaged")
    said(capsys, "run", "damaged.toml")
    assert first.done
    assert not (first.path / "earlier").exists()


def test_files_are_moved_aside_for_each_attempt_and_after_an_interrupted_move(first: RunDirectory) -> None:
    flip(first.path / "final/server-0.npy")
    spec = first.spec
    assert first.reopen() == first.path / "earlier/damaged-1"
    first.create(spec)
    assert first.reopen() is None
    (first.path / "DONE").write_text("{")  # a move that was interrupted has left DONE for the last
    assert first.reopen() == first.path / "earlier/damaged-2"
    assert sorted(path.name for path in (first.path / "earlier/damaged-2").iterdir()) == [
        "DONE",
        "records",
        "spec.json",
    ]
