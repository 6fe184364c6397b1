"""Two `hpcps run` that have points in common: each point is played once, and both wait for all of theirs."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_runs import Play
from running_processes import within

from hpcps.records.files import read_lines
from hpcps.records.locate import run_folder
from hpcps.records.run_directory import RunDirectory
from hpcps.spec.load import load_experiment

pytestmark = pytest.mark.usefixtures("starts_processes")

ALONE = ("--set", "transport.kind=inproc")
# Several times as long as it takes to start another `hpcps run`.
BRIEF = (*ALONE, "--set", "data.limit=1437", "--set", "train.local_steps=44", "--set", "train.epochs=150")
WAITS = "another hpcps runs {}: waiting for it"


# Nothing has to happen while it trains.
AT_ONCE = (*ALONE, "--set", "train.epochs=2")


def directory_of(experiment: Path, options: tuple[str, ...]) -> RunDirectory:
    (point,) = load_experiment(experiment, options[1::2]).points
    return RunDirectory(run_folder(point, experiment.parent / "results"))


@pytest.fixture
def directory(experiment: Path) -> RunDirectory:
    return directory_of(experiment, BRIEF)


def waiting(start: Callable[..., Play], directory: RunDirectory, *options: str) -> Play:
    """Start an `hpcps run` that finds the run taken."""
    second = start(*(options or BRIEF))
    within(60, lambda: WAITS.format(f"{directory.path.name} (faults)") in second.text, "it waits")
    return second


def attempts(directory: RunDirectory) -> int:
    return sum(line["event"] == "start" for line in read_lines(directory.path / "records" / "server-0.jsonl").lines)


def test_it_ends_when_the_other_one_has_played_its_points(start: Callable[..., Play], directory: RunDirectory) -> None:
    first = start(*BRIEF)
    first.until()
    second = waiting(start, directory)
    assert first.process.poll() is None
    assert second.process.poll() is None
    assert (second.end(), first.end()) == (0, 0)
    assert directory.done
    assert attempts(directory) == 1


def test_it_goes_on_with_what_the_other_one_leaves(start: Callable[..., Play], directory: RunDirectory) -> None:
    first = start(*BRIEF)
    first.until()
    second = waiting(start, directory)
    first.process.kill()
    assert first.end() != 0
    assert second.end(150) == 0
    assert directory.done
    assert attempts(directory) == 2


def test_a_run_that_fails_there_and_here_is_a_failure_of_both(
    start: Callable[..., Play], directory: RunDirectory
) -> None:
    directory.path.mkdir(parents=True)
    (directory.path / "final").touch()  # where a folder for the model shall be
    first = start(*BRIEF)
    first.until()
    second = waiting(start, directory)
    assert (first.end(), second.end()) == (1, 1)
    assert len(directory.earlier_failures) == 1


def test_it_can_be_stopped_while_it_waits_and_heeds_its_walltime(
    start: Callable[..., Play], directory: RunDirectory
) -> None:
    claim = directory.claim()
    assert claim is not None
    with claim:
        for number in (signal.SIGINT, signal.SIGTERM):
            play = waiting(start, directory)
            os.kill(play.process.pid, number)
            # While it tries again to claim the run, TERM ends it directly, which is the same for a shell.
            assert play.end() in (128 + number, -number)
        brief = (*BRIEF, "--set", "checkpoint.margin=1", "--walltime", "2")
        play = start(*brief, "--set", "checkpoint.successors=1")
        assert play.end() == 75
        assert "time is nearly over, but another hpcps still executes 1 of the runs" in play.text
        assert start(*brief).end() == 1


def test_what_nobody_plays_is_played_before_the_wait(start: Callable[..., Play], experiment: Path) -> None:
    directory = directory_of(experiment, AT_ONCE)
    experiment.write_text(experiment.read_text().replace("seed = 3", "") + "[[sweep]]\nseed = [3, 4, 5]\n")
    claim = directory.claim()
    assert claim is not None
    play = start(*AT_ONCE)
    within(60, lambda: "waiting for it" in play.text, "it waits")
    others = [RunDirectory(path) for path in directory.path.parent.iterdir() if path != directory.path]
    assert len(others) == 2
    within(60, lambda: all(other.done for other in others), "the end of the others")
    assert play.process.poll() is None
    # Nobody else is kept from what is not played at the moment.
    for free in (other.claim() for other in others):
        assert free is not None
        free.close()
    claim.close()
    assert play.end() == 0
    assert directory.done
