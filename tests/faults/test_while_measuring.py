"""The coordinator's evaluation runs in a thread beside its steps: what becomes of the run if either is lost."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_runs import Play, assert_blamed, assert_quiet
from running_processes import within

pytestmark = pytest.mark.usefixtures("starts_processes")

RECORDS = 10_000 * 3073
"""Bytes of each file of CIFAR-10."""
EPOCH = 250
"""Rounds of one, where the test set is lost before the first is over."""
BUSY = (
    "--set", "model.name=cifar_resnet56_v1", "--set", "data={name='synthetic', limit=20, test_limit=2000}",
    "--set", "train.batch_size=2", "--set", "transport.timeout=60",
)  # fmt: skip
"""An evaluation takes seconds, and a step much less: no signal interrupts a backward pass, and a launcher soon kills
the processes that are left once one has ended."""


def measuring(start: Callable[..., Play]) -> Play:
    """Start a run, and wait until its coordinator measures a model, in a later round than that of the model."""
    play = start(*BUSY)
    # An epoch is 5 steps, a round is 2: the first evaluation begins with round 3, and the second has to wait for it.
    play.until("worker-0", round=3)
    return play


def test_a_run_that_is_stopped_does_not_wait_for_it(start: Callable[..., Play]) -> None:
    play = measuring(start)
    play.process.terminate()
    # The next checkpoint comes after the evaluation.
    within(30, lambda: "a second signal stops at once" in play.text, "the offer")
    # A TERM within a second of the first counts as the same.
    told = time.monotonic()
    within(30, lambda: time.monotonic() - told > 1.1, "a second")
    play.process.terminate()
    assert play.end() == 128 + signal.SIGTERM
    assert play.left() == {}
    assert_quiet(play.text)
    assert "terminate called" not in play.text
    # A process that is killed because it does not end in time writes no reason.
    lines = play.lines("worker-0")
    assert lines[-1]["reason"] == "stopped"
    assert "evaluation" not in [line["event"] for line in lines]


def test_what_it_raises_is_told_with_the_round_of_the_model(start: Callable[..., Play], tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in (*(f"data_batch_{number}.bin" for number in range(1, 6)), "test_batch.bin"):
        with (data / name).open("wb") as file:
            file.truncate(RECORDS)
    limit = EPOCH * 2 * 16 * 2  # of two steps a round, 16 samples a step, and two shards
    play = start("--set", f"data={{name='cifar10', dir='{data}', limit={limit}, augment=false}}")
    play.until(round=5)
    os.truncate(data / "test_batch.bin", 1000)
    assert play.end(120) > 0
    assert play.left() == {}
    assert_quiet(play.text)
    assert_blamed(play.text, play.run, "worker-0", "truncated: 1,000 bytes")
    assert re.search(rf"worker-0 on \S+ failed in round {EPOCH}, phase evaluate: ", play.text)
    end = play.lines("worker-0")[-1]
    assert (end["reason"], end["round"]) == ("failed", EPOCH)
