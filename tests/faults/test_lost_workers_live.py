"""Runs over ps-lite that lose workers and go on: killed, stopped, declared lost although they live, again and again."""

import os
import random
import re
import signal
import time
from collections.abc import Callable

import pytest
from fault_runs import Play, assert_quiet
from running_processes import parent, within

from hpcps.cli.main import main

pytestmark = pytest.mark.usefixtures("starts_processes")

SURVIVING = (
    *("--set", "transport.kind=pslite", "--set", "survive.workers=true", "--set", "topology.workers=3"),
    *("--set", "data.limit=160", "--set", "train.epochs=4000"),
)


def lines(play: Play, event: str, process: str = "server-0") -> list[dict[str, object]]:
    return [line for line in play.lines(process) if line["event"] == event]


def pid_of(play: Play, process: str) -> int:
    """Return the id of the process that has a role now; rounds begin without a worker that is slow to start."""
    within(120, lambda: lines(play, "start", process), lambda: f"a start of {process}\n{play.text}")
    return int(lines(play, "start", process)[-1]["pid"])


def until_replaced(play: Play, process: str, times: int = 1) -> None:
    """Wait until the replacement of a process has trained."""

    def there() -> bool:
        assert play.process.poll() is None, play.text
        starts = [n for n, line in enumerate(play.lines(process)) if line.get("incarnation") == times]
        return bool(starts) and any(line["event"] == "round" for line in play.lines(process)[starts[-1] :])

    within(120, there, lambda: f"replacement {times} of {process} in a round\n{play.text}")


def kill_and_replace(play: Play, process: str) -> tuple[dict[str, object], dict[str, object]]:
    """Kill the first process that is lost, and wait for its replacement; return the lines of both."""
    os.kill(pid_of(play, process), signal.SIGKILL)
    until_replaced(play, process)
    (lost,), (replaced,) = lines(play, "lost"), lines(play, "replaced")
    assert (lost["process"], lost["cause"]) == (process, "its connection has closed")
    assert lost["ago"] < 5, "its connection says so at once"
    assert replaced["process"] == process
    assert re.search(rf"{process} \(pid \d+\) on \S+ was killed by signal 9 \(SIGKILL\)", play.text)
    assert f"hpcps: {process} is replaced (1)" in play.text
    return lost, replaced


def let_count_as_lost(play: Play, process: str) -> None:
    """Stop a process until it counts as lost and the others have gone on; then it goes on, too, and is replaced.

    Its guard is stopped with it, so that only its silence is noticed.
    """
    stopped = pid_of(play, process)
    guard = parent(stopped)
    for pid in (guard, stopped):
        os.kill(pid, signal.SIGSTOP)

    def lost() -> list[dict[str, object]]:
        return [line for line in lines(play, "lost") if line["process"] == process]

    within(60, lost, "a loss in the record")
    assert lost()[0]["cause"] == "it has sent nothing for 2 s"
    since = lines(play, "round")[-1]["round"]
    within(60, lambda: lines(play, "round")[-1]["round"] > since + 3, "further rounds")
    for pid in (stopped, guard):
        os.kill(pid, signal.SIGCONT)
    until_replaced(play, process)
    assert "was silent for so long that it counts as lost" in play.text


def assert_stops_whole(play: Play) -> None:
    """The run still ends at a checkpoint when it is asked to, and nothing is left of it."""
    play.process.send_signal(signal.SIGTERM)
    assert play.end() == 143
    assert "stopped by SIGTERM; run it again to go on" in play.text
    assert_quiet(play.text)
    assert play.left() == {}
    assert not play.run.failures


def test_a_killed_worker_is_replaced_and_the_run_goes_on(
    start: Callable[..., Play], capsys: pytest.CaptureFixture[str]
) -> None:
    paced = '[{name="paced", workers=[0, 1, 2], seconds=0.05}]'
    settings = (*SURVIVING, "--set", "topology.servers=2", "--set", f"heterogeneity.classes={paced}")
    play = start(*settings)
    play.until()
    lost, replaced = kill_and_replace(play, "worker-1")
    # The others go on meanwhile, and the replacement has its share of rounds from its first one on.
    between = [line for line in lines(play, "round") if lost["round"] < line["round"] < replaced["first"]]
    assert all(line["participants"] == [0, 2] for line in between)
    within(60, lambda: any(1 in line["participants"] for line in lines(play, "round")[-3:]), "worker 1 in a round")
    assert_stops_whole(play)
    # What has lost a process resumes like any other run, with three new workers.
    again = start(*settings)
    again.until(round=int(lines(play, "round")[-1]["round"]) + 5)
    before = len(lines(again, "lost"))
    os.kill(pid_of(again, "worker-2"), signal.SIGKILL)
    within(30, lambda: len(lines(again, "lost")) > before, "a loss in the record")
    # A checkpoint needs no part of a lost worker.
    assert_stops_whole(again)
    third = start(*settings)
    third.until(round=int(lines(again, "round")[-1]["round"]) + 5)
    third.until_resumed()
    assert_stops_whole(third)
    assert main(["replay", play.run.path.name, "--results", str(play.results)]) == 0
    assert "record lines of 3 attempts are equal" in capsys.readouterr().out


def test_a_replacement_begins_with_the_residual_of_the_last_checkpoint(
    start: Callable[..., Play], capsys: pytest.CaptureFixture[str]
) -> None:
    keeps = ("--set", "communication.compression={kind='topk', k=0.1}", "--set", "survive.residual=checkpoint")
    paced = ("--set", 'heterogeneity.classes=[{name="paced", workers=[0, 1, 2], seconds=0.05}]')
    play = start(*SURVIVING, *keeps, *paced, "--set", "checkpoint.rounds=20", "--set", "train.optimizer.momentum=0.9")
    play.until()
    within(60, lambda: len(lines(play, "checkpoint")) > 1, "two checkpoints")
    lost, _ = kill_and_replace(play, "worker-1")
    (replaced,) = (line for line in lines(play, "start", "worker-1") if line.get("incarnation"))
    assert 0 < replaced["residual_from"] <= lost["round"]
    assert_stops_whole(play)
    assert main(["replay", play.run.path.name, "--results", str(play.results)]) == 0
    assert "record lines of 1 attempt are equal" in capsys.readouterr().out


def test_the_others_take_the_samples_of_a_lost_worker(
    start: Callable[..., Play], capsys: pytest.CaptureFixture[str]
) -> None:
    paced = ("--set", 'heterogeneity.classes=[{name="paced", workers=[0, 1, 2], seconds=0.05}]')
    play = start(*SURVIVING, *paced, "--set", "survive.batch=constant")
    play.until()
    lost, replaced = kill_and_replace(play, "worker-1")
    assert_stops_whole(play)
    for process in ("worker-0", "worker-2"):
        samples = {line["round"]: line["samples"] for line in lines(play, "round", process)}
        absent = range(int(str(lost["round"])) + 1, int(str(replaced["first"])))
        assert absent
        assert {number for number, taken in samples.items() if taken == 48} == {*absent}, "48 = 32 + 32 / 2"
    assert main(["replay", play.run.path.name, "--results", str(play.results)]) == 0
    assert "record lines of 1 attempt are equal" in capsys.readouterr().out


ASYNCHRONOUS = ("--set", "train.mode=async", "--set", "validation.rule.kind=naive_async")


@pytest.mark.parametrize(
    ("mode", "kills", "epochs"),
    [
        pytest.param((), 3, 500, marks=pytest.mark.soak),
        pytest.param((), 8, 2000, marks=pytest.mark.soak),
        pytest.param(ASYNCHRONOUS, 8, 2000, marks=pytest.mark.soak),
    ],
    ids=["few", "many", "asynchronous"],
)
def test_workers_that_are_killed_again_and_again(
    mode: tuple[str, ...], kills: int, epochs: int, start: Callable[..., Play]
) -> None:
    """Also the first worker, whose validator evaluates; now and then the guard of a worker dies instead."""
    play = start(*SURVIVING, "--set", "topology.validators=1", *mode, "--set", f"train.epochs={epochs}")
    play.until("validator-0")
    stream = random.Random(7)
    for _ in range(kills):
        found = [pid for pid, command in play.left().items() if re.search(r"hpcps\.execution .* worker *$", command)]
        if found:
            pid = stream.choice(found)
            os.kill(parent(pid) if stream.random() < 0.3 else pid, signal.SIGKILL)
        time.sleep(stream.uniform(0.1, 2.0))
    assert play.end(300) == 0, play.text
    assert_quiet(play.text)
    assert play.left() == {}
    assert play.run.done
    assert lines(play, "lost", "validator-0")


def test_a_stopped_worker_is_lost_and_does_not_disturb_its_replacement(start: Callable[..., Play]) -> None:
    play = start(*SURVIVING, "--set", "survive.after=2")
    play.until()
    stopped = pid_of(play, "worker-2")
    os.kill(stopped, signal.SIGSTOP)
    until_replaced(play, "worker-2")
    assert re.search(r"was stopped, such as by SIGSTOP, for \S+ s, and its guard has killed it", play.text)
    assert_stops_whole(play)


def test_a_worker_that_counts_as_lost_and_lives_ends_and_is_replaced(start: Callable[..., Play]) -> None:
    play = start(*SURVIVING, "--set", "survive.after=2")
    play.until()
    let_count_as_lost(play, "worker-2")
    assert_stops_whole(play)


def test_a_server_is_no_worker(start: Callable[..., Play]) -> None:
    play = start(*SURVIVING, "--set", "topology.servers=2")
    play.until("server-1")
    os.kill(play.pid("server-1"), signal.SIGKILL)
    assert play.end() > 0
    assert re.search(r"\): server-1 on \S+ failed .*was killed by signal 9", play.text), play.text
    assert play.left() == {}


@pytest.mark.parametrize("mode", [(), ASYNCHRONOUS], ids=["synchronous", "asynchronous"])
def test_the_worker_that_evaluates_is_replaced(
    mode: tuple[str, ...], start: Callable[..., Play], capsys: pytest.CaptureFixture[str]
) -> None:
    """The evaluator that it gives its models to is replaced, too."""
    paced = ("--set", 'heterogeneity.classes=[{name="paced", workers=[0, 1, 2], seconds=0.05}]')
    play = start(*SURVIVING, *mode, *paced, "--set", "topology.evaluators=1", "--set", "train.epochs=40")
    within(120, lambda: lines(play, "evaluation", "worker-0"), lambda: play.text)
    (evaluator,) = (pid for pid, command in play.left().items() if command.rstrip().endswith(" evaluator"))
    for pid in (pid_of(play, "worker-0"), evaluator):
        os.kill(pid, signal.SIGKILL)
    within(60, lambda: len(lines(play, "start", "worker-0")) == 2, lambda: play.text)
    known = len(lines(play, "evaluation", "worker-0"))
    within(60, lambda: len(lines(play, "evaluation", "worker-0")) > known, lambda: f"an evaluation\n{play.text}")
    assert play.end(120) == 0, play.text
    assert_quiet(play.text)
    assert play.left() == {}
    assert lines(play, "evaluation", "worker-0")[-1]["epoch"] == 40
    assert main(["replay", play.run.path.name, "--results", str(play.results)]) == 0
    assert "record lines of 1 attempt are equal" in capsys.readouterr().out


def test_a_run_that_waits_in_vain_stops_at_a_checkpoint(
    start: Callable[..., Play], capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker that is lost again soon is replaced later each time, in the end later than the run waits."""
    paced = '[{name="paced", workers=[0, 1, 2], seconds=0.05}]'
    settings = (
        *SURVIVING,
        "--set",
        "survive.min_workers=3",
        "--set",
        "checkpoint.successors=1",
        "--set",
        f"heterogeneity.classes={paced}",
    )
    play = start(*settings, "--set", "survive.wait=3")
    play.until()
    for times in range(3):
        os.kill(pid_of(play, "worker-1"), signal.SIGKILL)
        if times < 2:
            until_replaced(play, "worker-1", times + 1)
    assert play.end() == 75, play.text
    waits = "server-0 waits for replacements: it has 2 workers, and needs 3"
    assert f"{waits}; stopping at the next checkpoint" in play.text
    assert f"stopped at a checkpoint, as {waits}" in play.text
    assert play.left() == {}
    assert not play.run.failures
    again = start(*settings)
    again.until(round=int(lines(play, "round")[-1]["round"]) + 3)
    again.until_resumed()
    assert_stops_whole(again)
    assert main(["replay", play.run.path.name, "--results", str(play.results)]) == 0
    assert "record lines of 2 attempts are equal" in capsys.readouterr().out
