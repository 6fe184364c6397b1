"""Runs over ps-lite that lose validators and go on; their replacements serve and evaluate, and a replay is equal."""

import os
import random
import re
import signal
from collections.abc import Callable

import pytest
from fault_runs import Play, assert_quiet
from running_processes import within
from test_killed_and_replayed import kill
from test_lost_workers_live import (
    ASYNCHRONOUS,
    SURVIVING,
    assert_stops_whole,
    kill_and_replace,
    let_count_as_lost,
    lines,
    pid_of,
    until_replaced,
)

from hpcps.cli.main import main

pytestmark = pytest.mark.usefixtures("starts_processes")

VALIDATORS = (*SURVIVING, "--set", "survive.validators=true")
TWO = (*VALIDATORS, "--set", "topology.validators=2", "--set", "topology.servers=2")
PACED = '[{name="paced", workers=[0, 1, 2], seconds=0.05}]'


def lost_validators(play: Play) -> list[str]:
    return [line["process"] for line in lines(play, "lost") if str(line["process"]).startswith("validator")]


def assert_evaluated_once(play: Play) -> None:
    """Each epoch is evaluated, in order; the last one before a loss at most twice."""
    epochs = [line["epoch"] for line in lines(play, "evaluation", "validator-0")]
    assert epochs == sorted(epochs)
    assert {*epochs} == {*range(1, max(epochs) + 1)}


def assert_replayed(play: Play, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    status = main(["replay", play.run.path.name, "--results", str(play.results)])
    said = capsys.readouterr()
    assert status == 0, f"{said.out}\n{said.err}"
    assert " are equal, and the final model (" in said.out


def assert_all_are_served(play: Play) -> None:
    """Entries of each worker follow."""
    before, workers = len(lines(play, "applied")), {"worker-0", "worker-1", "worker-2"}
    within(60, lambda: workers <= {line["reader"] for line in lines(play, "applied")[before:]}, "all workers")


def served_while_there(play: Play) -> dict[tuple[int, ...], set[tuple[str, str]]]:
    """Return which worker was served by which validator while these validators were there."""
    found: dict[tuple[int, ...], set[tuple[str, str]]] = {}
    there = (0, 1)
    for line in lines(play, "applied"):
        there = tuple(line.get("validators", there))
        if str(line["reader"]).startswith("worker"):
            found.setdefault(there, set()).add((str(line["reader"]), str(line["submitter"])))
    return found


def test_another_validator_serves_in_an_asynchronous_run_until_the_replacement_does(
    start: Callable[..., Play], capsys: pytest.CaptureFixture[str]
) -> None:
    play = start(*TWO, *ASYNCHRONOUS, "--set", "checkpoint.rounds=400")
    play.until("validator-1")
    for name in ("validator-1", "validator-0"):
        os.kill(pid_of(play, name), signal.SIGKILL)
        until_replaced(play, name)
        assert_all_are_served(play)
    assert lost_validators(play) == ["validator-1", "validator-0"]
    served = served_while_there(play)
    workers = [f"worker-{k}" for k in range(3)]
    assert served[0, 1] == {("worker-0", "validator-0"), ("worker-1", "validator-1"), ("worker-2", "validator-0")}
    for other in (0, 1):
        assert served[other,] == {(worker, f"validator-{other}") for worker in workers}
    evaluated = len(lines(play, "evaluation", "validator-0"))
    within(60, lambda: len(lines(play, "evaluation", "validator-0")) > evaluated + 1, "further evaluations")
    assert_stops_whole(play)
    assert_evaluated_once(play)
    capsys.readouterr()
    assert main(["replay", play.run.path.name, "--results", str(play.results)]) == 0
    assert "record lines of 1 attempt are equal" in capsys.readouterr().out


def test_another_validator_serves_until_the_replacement_does(
    start: Callable[..., Play], capsys: pytest.CaptureFixture[str]
) -> None:
    settings = (*TWO, "--set", f"heterogeneity.classes={PACED}", "--set", "checkpoint.rounds=40")
    play = start(*settings)
    play.until("validator-1")
    lost, replaced = kill_and_replace(play, "validator-1")
    between = [line for line in lines(play, "round") if lost["round"] < line["round"] < replaced["first"]]
    assert between
    assert all(line["validators"] == [0] for line in between)
    served = {line["round"]: line["participants"] for line in lines(play, "round", "validator-0")}
    assert any(served[line["round"]] == [0, 1, 2] for line in between)
    within(60, lambda: lines(play, "round")[-1]["validators"] == [0, 1], "validator 1 in a round")
    # The one that evaluates is replaced, too.
    evaluated = len(lines(play, "evaluation", "validator-0"))
    os.kill(pid_of(play, "validator-0"), signal.SIGKILL)
    until_replaced(play, "validator-0")
    within(60, lambda: len(lines(play, "evaluation", "validator-0")) > evaluated + 1, "further evaluations")
    assert_stops_whole(play)
    assert_evaluated_once(play)
    # What has lost a validator resumes like any other run.
    again = start(*settings)
    again.until(round=int(lines(play, "round")[-1]["round"]) + 5)
    os.kill(pid_of(again, "validator-1"), signal.SIGKILL)
    within(30, lambda: lost_validators(again), "a loss in the record")
    assert_stops_whole(again)
    capsys.readouterr()
    assert main(["replay", play.run.path.name, "--results", str(play.results)]) == 0
    assert "record lines of 2 attempts are equal" in capsys.readouterr().out


@pytest.mark.parametrize("servers", [pytest.param(1, marks=pytest.mark.soak), 2])
def test_all_wait_for_the_replacement_of_the_only_validator(
    servers: int, start: Callable[..., Play], capsys: pytest.CaptureFixture[str]
) -> None:
    play = start(*VALIDATORS, "--set", "topology.validators=1", "--set", f"topology.servers={servers}",
                 "--set", "train.epochs=150")  # fmt: skip
    play.until("validator-0")
    os.kill(pid_of(play, "validator-0"), signal.SIGKILL)
    until_replaced(play, "validator-0")
    assert play.end(300) == 0, play.text
    assert_quiet(play.text)
    assert play.left() == {}
    assert play.run.done
    assert lost_validators(play) == ["validator-0"]
    assert_evaluated_once(play)
    assert_replayed(play, capsys)


@pytest.mark.parametrize(
    ("mode", "seconds", "epochs"),
    [
        pytest.param((), 5.0, 300, id="few"),
        pytest.param((), 20.0, 1000, id="many", marks=pytest.mark.soak),
        pytest.param(ASYNCHRONOUS, 20.0, 1000, id="asynchronous", marks=pytest.mark.soak),
    ],
)
def test_validators_and_workers_that_are_killed_again_and_again(
    mode: tuple[str, ...], seconds: float, epochs: int, start: Callable[..., Play], capsys: pytest.CaptureFixture[str]
) -> None:
    play = start(*TWO, *mode, "--set", "survive.after=2", "--set", f"train.epochs={epochs}")
    play.until("validator-0")
    assert kill(play, random.Random(7), seconds, (0.3, 1.5), "worker|validator") > 2
    assert play.end(300) == 0, play.text
    assert_quiet(play.text)
    assert play.left() == {}
    assert play.run.done
    assert lines(play, "lost")
    assert not lines(play, "lost", "server-1"), "server 0 alone is told of losses"
    assert_evaluated_once(play)
    assert_replayed(play, capsys)


@pytest.mark.soak  # a worker that counts as lost does the same
def test_a_validator_that_counts_as_lost_and_lives_ends_and_is_replaced(start: Callable[..., Play]) -> None:
    play = start(*TWO, "--set", "survive.after=2")
    play.until("validator-1")
    let_count_as_lost(play, "validator-1")
    assert_stops_whole(play)
    assert not lines(play, "rejected"), "it has disturbed nobody"


@pytest.mark.parametrize(
    ("seconds", "epochs"),
    [pytest.param(5.0, 300, id="few"), pytest.param(20.0, 1000, id="many", marks=pytest.mark.soak)],
)
def test_the_evaluator_is_killed_too(
    seconds: float, epochs: int, start: Callable[..., Play], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is replaced, also while the coordinator is, and the last model is evaluated."""
    play = start(*TWO, "--set", "topology.evaluators=1", "--set", "survive.after=2", "--set", f"train.epochs={epochs}")
    play.until("validator-0")
    evaluator = next(pid for pid, command in play.left().items() if re.search(r"execution .* evaluator *$", command))
    os.kill(evaluator, signal.SIGKILL)
    within(60, lambda: lines(play, "replaced", "validator-0"), lambda: play.text)
    assert kill(play, random.Random(3), seconds, (0.5, 2.0), "evaluator|validator") > 1
    assert play.end(300) == 0, play.text
    assert_quiet(play.text)
    assert play.left() == {}
    assert play.run.done
    assert epochs in [line["epoch"] for line in lines(play, "evaluation", "validator-0")]
    assert_replayed(play, capsys)
