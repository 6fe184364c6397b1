"""Real jobs that are killed at random moments, or run out of time, and go on."""

import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from fault_runs import SOON, Play, assert_quiet, hpcps
from running_processes import within

from hpcps.records.collect import collect

pytestmark = pytest.mark.usefixtures("starts_processes")

WIDE = (
    *("--set", "topology={servers=2, validators=1, workers=2}", "--set", "validation.rule={kind='zeno'}"),
    *("--set", "train.epochs=50", "--set", "checkpoint.every=5", "--set", "communication.participation=0.8"),
)
KILLS = 2


def test_killed_at_random_moments(start: Callable[..., Play], experiment: Path, tmp_path: Path) -> None:
    chance = random.Random("five-processes")
    for number in range(KILLS):
        play = start(*WIDE)
        # The first one while it starts, the other some time after a checkpoint.
        if number:
            until_sealed(play)
        time.sleep(chance.uniform(0, 0.5 if number else 2.0))
        # `hpcps run` itself, or everything at once.
        if number:
            play.process.kill()
        else:
            play.kill()
        play.end()
        until_nobody_is_left(play)
    last = start(*WIDE)
    assert last.end(200) == 0, last.text
    assert_quiet(last.text)
    table = collect(last.run.path.parents[1]).table
    evaluations = table[table["event"] == "evaluation"]
    assert evaluations["epoch"].tolist() == list(range(1, int(evaluations["epoch"].max()) + 1))
    starts = (last.run.path / "records" / "server-0.jsonl").read_text()
    assert starts.count('"continues"') >= KILLS // 2, "it seldom went on from a checkpoint"
    done = hpcps("run", experiment, *WIDE, "--set", "transport.kind=inproc", "--results", tmp_path / "other")
    assert done.returncode == 0, done.stderr
    (other,) = (tmp_path / "other").glob("*/runs/*")
    for shard in sorted((other / "final").iterdir()):
        assert np.array_equal(np.load(shard), np.load(last.run.path / "final" / shard.name)), shard.name


def until_sealed(play: Play) -> None:
    """Wait until there is another checkpoint, or the run is through."""

    def newest() -> int:
        return max(
            (int(path.parent.name) for path in play.results.glob("*/runs/*/checkpoints/*/manifest.json")), default=0
        )

    before = newest()
    within(60, lambda: play.process.poll() is not None or newest() > before, "a checkpoint")


def until_nobody_is_left(play: Play) -> None:
    within(SOON, lambda: not play.left(), "the end of the ranks")


def test_a_job_stops_in_time_and_says_that_it_wants_a_successor(
    start: Callable[..., Play], monkeypatch: pytest.MonkeyPatch
) -> None:
    chained = ("--set", "checkpoint.successors=1", "--set", "checkpoint.margin=1")
    play = with_time_to_begin(start, *chained)
    assert play.end() == 75, play.text
    assert_quiet(play.text)
    assert "time is nearly over" in play.text
    assert play.lines("server-0")[-1]["reason"] == "suspended"

    monkeypatch.setenv("HPCPS_SUCCESSOR", "1")
    # What was typed for the first job of the chain is repeated.
    successor = with_time_to_begin(start, *chained, "--no-resume")
    assert successor.end() == 1
    assert "checkpoint.successors = 1 allows no job after this one" in successor.text
    assert any("continues" in line for line in successor.lines("server-0"))


def with_time_to_begin(start: Callable[..., Play], *arguments: str) -> Play:
    """Run with a walltime in which the processes come to a round, which is longer on a busy machine."""
    for walltime in (4, 8, 16, 32):
        play = start(*arguments, "--walltime", f"0:{walltime}")
        play.end(60)
        if any(line["event"] == "round" for line in play.lines("server-0")):
            return play
    raise AssertionError(play.text)
