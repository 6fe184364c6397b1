"""A run whose folder somebody deletes while it is played is not done, says so, and is played again."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_runs import Play, assert_quiet, within

from hpcps.records.run_directory import RunDirectory

# Two seconds of training in a hundred rounds.
BRIEF = ("data.limit=1437", "train.local_steps=44", "train.epochs=100", "checkpoint.every=10")


REPEATED = [
    pytest.param(*case, marks=pytest.mark.soak)
    for case in (("mpi", "records"), ("inproc", "."), ("inproc", "records"), ("pslite", "."), ("pslite", "records"))
]


@pytest.mark.parametrize(("transport", "lost"), [("mpi", "."), *REPEATED])
def test_a_folder_that_is_deleted_after_a_checkpoint(
    start: Callable[..., Play], tmp_path: Path, transport: str, lost: str
) -> None:
    options = [part for text in (*BRIEF, f"transport.kind={transport}") for part in ("--set", text)]
    play = start(*options)
    within(60, lambda: list(play.results.glob("*/runs/*/checkpoints/*/manifest.json")), "a checkpoint")
    path = play.run.path
    (path / lost).rename(tmp_path / "taken away")
    shutil.rmtree(tmp_path / "taken away")
    assert play.end() == 1
    assert not (path / "DONE").exists()
    said = "was deleted or moved during the run" if lost == "." else "missing in"
    assert said in play.text
    assert_quiet(play.text)

    again = start(*options)
    assert again.end() == 0, again.text
    assert "done already" not in again.text
    assert RunDirectory(path).done
    assert again.lines("worker-0")[-1]["reason"] == "finished"
