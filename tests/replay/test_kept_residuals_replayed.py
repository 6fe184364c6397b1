"""Runs whose replacements begin with the residual of a checkpoint are replayed, without the checkpoints of the run."""

import json

import pytest
from executed import run_here
from recorded import lines, record
from replay.test_lost_workers_replayed import assert_equal, changed, costs, losses, play, replayed
from survive.test_kept_residuals import keeping

from hpcps.records.run_directory import RunDirectory
from hpcps.roles.worker import Worker

OFTEN = {"process": "worker", "every": 0.8, "noticed": 0.02, "repair": 0.02}
RUNS = {
    "servers": keeping(OFTEN, servers=2, simulation=costs()),
    "validators": keeping(OFTEN, validators=2, workers=5, simulation=costs()),
    "a quorum": keeping(OFTEN, workers=6, quorum=0.5, simulation=costs(), train={"late": "next"}),
    "asynchronous": keeping(OFTEN, mode="async", simulation=costs()),
    "asynchronous validators": keeping(OFTEN, mode="async", validators=2, servers=2, simulation=costs()),
    "blocks that are not sent": keeping(
        OFTEN, simulation=costs(), communication={"compression": {"kind": "none"}, "skip_rate": 0.3}
    ),
}


def beginnings(directory):
    """Return the checkpoints whose residuals replacements began with; None for one that began with zeros."""
    starts = [line for file in directory.records for line in lines(directory, file.stem) if line["event"] == "start"]
    return [line.get("residual_from") for line in starts if line.get("incarnation")]


@pytest.mark.sample(2, 4)
@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_replayed(name, tmp_path):
    directory = run_here(RUNS[name], tmp_path / "run")
    assert losses(directory) > 2
    assert len({*beginnings(directory)} - {None}) > 1
    assert not directory.checkpoints.positions()
    assert_equal(directory, tmp_path / "replay")


def test_a_run_that_resumes_is_replayed(tmp_path):
    """A replacement of the second attempt begins with what the worker had at the checkpoint of the first."""
    run = keeping({"process": "worker-2", "at": [0.5], "repair": 0.05}, checkpoint={"rounds": 6})
    directory = RunDirectory(tmp_path / "run")
    own = record(directory, "server-0")
    assert not play(run, directory.path, stop=lambda: '"round": 1' in own.read_text())
    assert play(run, directory.path)
    assert {*beginnings(directory)} - {None}
    assert_equal(directory, tmp_path / "replay")


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    return run_here(RUNS["servers"], tmp_path_factory.mktemp("done") / "run")


def with_residual_from(change):
    """Return what changes the checkpoint of the first line that names one, and notes its process and number."""

    def changed_lines(found):
        number = next(number for number, line in enumerate(found) if "residual_from" in line)
        value = change(found[number].pop("residual_from"))
        found[number] |= {} if value is None else {"residual_from": value}
        return found

    return changed_lines


def process_with_residual(directory):
    return next(file.stem for file in directory.records if '"residual_from"' in file.read_text())


@pytest.mark.parametrize("position", [1, -4, 10**9, "6", None], ids=str)
def test_another_checkpoint_is_a_difference(position, done, tmp_path):
    process = process_with_residual(done)
    copy = changed(done, tmp_path, process, with_residual_from(lambda before: position))
    result, _ = replayed(copy, tmp_path / "replay")
    assert result.difference is not None
    if position is not None:
        number = next(n for n, line in enumerate(lines(copy, process)) if "residual_from" in line)
        assert result.difference.where == f"records/{process}.jsonl, line {number + 1}"
        assert json.dumps(position).replace('"', "'") in result.difference.what


def test_a_replacement_that_forgets_is_found(done, tmp_path, monkeypatch):
    monkeypatch.setattr(Worker, "take_over", lambda self, part: None)
    result, _ = replayed(done, tmp_path / "replay")
    assert result.difference is not None
