"""Runs that start again from checkpoints in `/dev/shm`: what they lose, what they end with, and what they leave."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from fault_runs import Play, assert_quiet, hpcps
from running_processes import within

from hpcps.records.memory import RunMemory

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("starts_processes")]

SOME = ("--set", "checkpoint.every=0", "--set", "checkpoint.rounds=4", "--set", "train.epochs=40")
"""Rounds enough for some checkpoints before and after a kill."""
TWO = ("--set", "topology={servers=1, validators=1, workers=2}", "--set", "validation.rule={kind='zeno'}")
OVER = {kind: ("--set", f"transport.kind={kind}") for kind in ("inproc", "mpi", "pslite")}


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of this test, whose runs leave nothing in memory."""
    path = tmp_path_factory.mktemp("memory")
    yield path
    for run in path.glob("*/*/runs/*"):
        assert not of(run), "left in /dev/shm"


def of(run: Path) -> list[Path]:
    """Return what a run has in memory."""
    folder = RunMemory(run).folder
    return [folder, *folder.rglob("*")] if folder.exists() else []


def positions(play: Play) -> list[int]:
    """Return the checkpoints that are in memory only, the newest first."""
    return [p for p in play.run.checkpoints.positions() if play.run.checkpoints.in_memory(p)]


def until_in_memory(play: Play, after: int = 0) -> int:
    """Wait until a checkpoint is in memory, later than a position; return its position."""

    def newest() -> int:
        if play.process.poll() is not None:
            raise AssertionError(play.text)
        return max(positions(play), default=0) if list(play.results.glob("*/runs/*")) else 0

    within(60, lambda: newest() > after, "a checkpoint in memory")
    return newest()


def model(results: Path) -> np.ndarray:
    (run,) = results.glob("*/runs/*")
    return np.concatenate([np.load(path) for path in sorted((run / "final").iterdir())])


@pytest.mark.parametrize("kind", ["mpi", "pslite"], ids=["over MPI", "over ps-lite"])
def test_a_killed_process_costs_the_rounds_since_the_last_one_in_memory(
    kind: str, start: Callable[..., Play], experiment: Path, tmp_path: Path
) -> None:
    play = start(*TWO, *SOME, *OVER[kind], "--retry", "3")
    killed: list[int] = []
    for victim in ("worker-1", "server-0"):
        after = until_in_memory(play, killed[-1] if killed else 0)
        pid = [line["pid"] for line in play.lines(victim) if line["event"] == "start"][-1]
        os.kill(pid, signal.SIGKILL)
        killed.append(after)
        within(60, lambda: play.text.count("goes on from its checkpoint") >= len(killed), "the next attempt")
    assert play.end(200) == 0, play.text
    assert_quiet(play.text)
    found = [line for line in play.text.splitlines() if "goes on from its checkpoint" in line]
    assert len(found) == 2
    for line, position in zip(found, killed, strict=True):
        assert line.endswith(", which is in memory")
        assert int(line.split(" at ")[1].partition(",")[0]) >= position
    other = tmp_path / "other"
    undisturbed = (*TWO, "--set", "train.epochs=40", *OVER["inproc"], "--results", other)
    done = hpcps("run", experiment, *undisturbed)
    assert done.returncode == 0, done.stderr
    assert np.array_equal(model(play.results), model(other))


@pytest.mark.parametrize("gone", [False, True], ids=["memory", "disk"])
def test_hpcps_run_is_killed_and_the_next_one_goes_on(
    gone: bool, start: Callable[..., Play], experiment: Path, tmp_path: Path
) -> None:
    play = start(*SOME, *OVER["inproc"])
    position = until_in_memory(play)
    play.kill()
    assert of(play.run.path), "it is there for the next one"
    before = play.run.checkpoints.positions()
    if gone:
        shutil.rmtree(RunMemory(play.run.path).folder)
        position = play.run.checkpoints.positions()[0]
        assert position < before[0]
    again = start(*SOME, *OVER["inproc"])
    assert again.end(60) == 0, again.text
    assert_quiet(again.text)
    begun = [line for line in again.lines("server-0") if line["event"] == "start"]
    rounds = [line["round"] for line in again.lines("server-0") if line["event"] == "round"]
    assert "continues" in begun[0]
    assert rounds[0] >= position
    assert gone == (rounds[0] < before[0])
    other = tmp_path / "other"
    done = hpcps("run", experiment, "--set", "train.epochs=40", *OVER["inproc"], "--results", other)
    assert done.returncode == 0, done.stderr
    assert np.array_equal(model(play.results), model(other))


@pytest.mark.parametrize("kind", ["mpi", "pslite"], ids=["over MPI", "over ps-lite"])
def test_a_run_that_fails_leaves_its_newest_one_on_disk(kind: str, start: Callable[..., Play]) -> None:
    play = start(*TWO, *SOME, *OVER[kind])
    position = until_in_memory(play)
    os.kill(play.pid("worker-1"), signal.SIGKILL)
    assert play.end() == 1
    assert not of(play.run.path)
    (newest, *_) = play.run.checkpoints.positions()
    assert newest >= position
    assert not play.run.checkpoints.in_memory(newest)


@pytest.mark.parametrize("kind", ["inproc", "mpi"], ids=["in one process", "over MPI"])
def test_a_run_that_stops_leaves_its_checkpoint_on_disk(kind: str, start: Callable[..., Play]) -> None:
    play = start(*SOME, *OVER[kind])
    position = until_in_memory(play)
    play.process.send_signal(signal.SIGINT)
    assert play.end() == 130, play.text
    assert not of(play.run.path)
    (newest, *_) = play.run.checkpoints.positions()
    assert newest > position
    assert not play.run.checkpoints.in_memory(newest)


@pytest.mark.parametrize("kind", ["inproc", "pslite"])
def test_a_full_dev_shm_ends_no_run(kind: str, experiment: Path, tmp_path: Path) -> None:
    # The file fills it while the run begins.
    mount = 'mount -t tmpfs -o size=1m tmpfs /dev/shm && (head -c 2m /dev/zero > /dev/shm/other || true) && exec "$@"'
    if subprocess.run(["unshare", "-m", "sh", "-c", mount, "sh", "true"], capture_output=True).returncode:
        pytest.skip("a mount namespace needs root")
    folder = Path("/tmp") / f"hpcps-{os.getpid()}"
    try:
        shutil.copytree(experiment.parent, folder)
        prefix = ("unshare", "-m", "sh", "-c", mount, "sh")
        ended = hpcps(
            "run", folder / experiment.name, *SOME, *OVER[kind], "--results", folder / "results", prefix=prefix
        )
        assert ended.returncode == 0, ended.stdout + ended.stderr
        (record,) = (folder / "results").glob("*/runs/*/records/server-0.jsonl")
        assert record.read_text().count('{"event": "checkpoint"') > 3
    finally:
        shutil.rmtree(folder)
