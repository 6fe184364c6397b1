"""Several launches at a time, and how they end when the command is stopped or killed."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_runs import SOON, Play, assert_quiet
from running_processes import within

from hpcps.records.files import read_lines

pytestmark = [
    pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core only"),
    pytest.mark.usefixtures("starts_processes"),
]

TWO = "\n[[sweep]]\nseed = [1, 2]\n"


def starts(play: Play) -> list[dict[str, object]]:
    files = play.results.glob("*/runs/*/records/server-0.jsonl")
    return [line for path in files for line in read_lines(path).lines if line["event"] == "start"]


def together(start: Callable[..., Play], experiment: Path) -> Play:
    """Start two runs at a time and wait until both are in their middle."""
    experiment.write_text(experiment.read_text() + TWO)
    play = start("--jobs", "2")

    def both() -> bool:
        assert play.process.poll() is None, play.text
        files = list(play.results.glob("*/runs/*/records/server-0.jsonl"))
        return len(files) == 2 and all(len(read_lines(path).lines) > 5 for path in files)

    within(120, both, "both runs")
    return play


def test_each_has_its_own_cores_and_both_are_stopped(start: Callable[..., Play], experiment: Path) -> None:
    play = together(start, experiment)
    assert sum("hpcps.execution.sweep.slots" in command for command in play.left().values()) == 2
    cores = [os.sched_getaffinity(int(line["pid"])) for line in starts(play)]
    assert cores[0] | cores[1] == os.sched_getaffinity(0)
    assert not cores[0] & cores[1]
    play.process.send_signal(signal.SIGINT)
    assert play.end() == 130
    assert play.left() == {}
    assert_quiet(play.text)
    assert len(re.findall("^hpcps: stopped", play.text, re.MULTILINE)) == 2
    for path in play.results.glob("*/runs/*/records/*.jsonl"):
        assert read_lines(path).lines[-1]["reason"] == "suspended"
    assert not list(play.results.glob("*/runs/*/DONE"))


def test_nothing_outlives_the_command(start: Callable[..., Play], experiment: Path) -> None:
    play = together(start, experiment)
    play.process.kill()
    play.end()
    within(SOON, lambda: not play.left(), f"the end of {play.left()}")
    assert not list(play.results.glob("*/runs/*/DONE"))
