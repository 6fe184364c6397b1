"""Runs over ps-lite that lose servers and go on: their standbys take their places, and a replay is equal."""

import os
import random
import re
import signal
from collections.abc import Callable

import pytest
from fault_runs import Play, assert_quiet
from running_processes import parent, within
from test_killed_and_replayed import kill
from test_lost_validators_live import TWO, assert_evaluated_once, assert_replayed
from test_lost_workers_live import ASYNCHRONOUS, assert_stops_whole, lines

from hpcps.cli.main import main

pytestmark = pytest.mark.usefixtures("starts_processes")

SERVERS = (*TWO, "--set", "survive.servers=true", "--set", "survive.after=2", "--set", "transport.timeout=60")


ENDS = re.compile("no standby is there|before its standby had its state")
"""What a run says that has lost a server whose standby could not take its place."""


def server(play: Play, name: str = "server-0") -> int:
    """Return the id of the process that is a server now."""
    within(120, lambda: lines(play, "start", name), lambda: f"a start of {name}\n{play.text}")
    return int([line for line in play.lines(name) if line["event"] in ("start", "took_over")][-1]["pid"])


def seats(play: Play, name: str = "server-0") -> list[str]:
    return [str(line["event"]) for line in play.lines(name) if str(line["event"]).startswith(("took", "standby"))]


def lose(play: Play, name: str) -> None:
    """Kill the process that is a server, and wait until it has a standby again, and rounds follow."""
    before = seats(play, name)
    os.kill(server(play, name), signal.SIGKILL)
    within(60, lambda: seats(play, name) == [*before, "took_over", "standby_began"], lambda: play.text)
    rounds = len(play.lines(name))
    within(60, lambda: len(play.lines(name)) > rounds + 5, "further lines")


@pytest.mark.parametrize("mode", [pytest.param((), id="synchronous"), pytest.param(ASYNCHRONOUS, id="asynchronous")])
def test_the_standby_takes_the_place_of_its_server(
    mode: tuple[str, ...], start: Callable[..., Play], capsys: pytest.CaptureFixture[str]
) -> None:
    """Both servers, and the one that took the place of server 0."""
    settings = (*SERVERS, *mode, "--set", "checkpoint.rounds=60")
    play = start(*settings)
    play.until("validator-1")
    for name in ("server-0", "server-1", "server-0"):
        lose(play, name)
    took = [n for n, line in enumerate(play.lines("server-0")) if line["event"] == "took_over"]
    event = "applied" if mode else "round"
    for n in took:
        last = [line["time"] for line in play.lines("server-0")[:n] if line["event"] == event][-1]
        first = next(line["time"] for line in play.lines("server-0")[n:] if line["event"] == event)
        assert float(str(first)) - float(str(last)) < 5
    assert_stops_whole(play)
    again = start(*settings)
    again.until("validator-0")
    lose(again, "server-1")
    assert_stops_whole(again)
    capsys.readouterr()
    assert main(["replay", play.run.path.name, "--results", str(play.results)]) == 0
    assert "record lines of 2 attempts are equal" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("mode", "seconds", "epochs"),
    [
        pytest.param((), 6.0, 300, id="few"),
        pytest.param((), 20.0, 1000, id="many", marks=pytest.mark.soak),
        pytest.param(ASYNCHRONOUS, 20.0, 1000, id="asynchronous", marks=pytest.mark.soak),
    ],
)
def test_any_process_is_killed_again_and_again(
    mode: tuple[str, ...], seconds: float, epochs: int, start: Callable[..., Play], capsys: pytest.CaptureFixture[str]
) -> None:
    play = start(*SERVERS, *mode, "--set", f"train.epochs={epochs}")
    play.until("validator-0")
    assert kill(play, random.Random(11), seconds, (1.5, 2.5), "worker|validator|server|standby") > 1
    status = play.end(300)
    assert_quiet(play.text)
    assert play.left() == {}
    if status and ENDS.search(play.text):
        return  # a server was lost while no standby had its state
    assert status == 0, play.text
    assert play.run.done
    assert not lines(play, "lost", "server-1"), "server 0 alone is told of losses"
    assert_evaluated_once(play)
    assert_replayed(play, capsys)


@pytest.mark.soak
def test_a_server_that_counts_as_lost_and_lives_disturbs_nobody(
    start: Callable[..., Play], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is stopped together with its guard, so that only its silence is noticed, and goes on later."""
    play = start(*SERVERS, "--set", "train.epochs=300", "--set", "checkpoint.rounds=40")
    play.until("validator-1")
    stopped = server(play)
    guard = parent(stopped)
    for pid in (guard, stopped):
        os.kill(pid, signal.SIGSTOP)
    within(60, lambda: "took_over" in seats(play), lambda: play.text)
    since = len(lines(play, "round"))
    within(60, lambda: len(lines(play, "round")) > since + 50, "further rounds")
    for pid in (stopped, guard):
        os.kill(pid, signal.SIGCONT)
    within(60, lambda: "standby_began" in seats(play), lambda: play.text)
    assert play.end(300) == 0, play.text
    assert play.run.done
    assert_replayed(play, capsys)


@pytest.mark.parametrize("last", ["server", "standby"])
def test_both_processes_of_a_server(last: str, start: Callable[..., Play]) -> None:
    """The run ends, names the server whichever process was lost last, and goes on from its checkpoint."""
    settings = (*SERVERS, "--set", "checkpoint.rounds=20")
    play = start(*settings)
    play.until("validator-1", round=30)
    standby = next(pid for pid, command in play.left().items() if re.search(r"hpcps\.execution .* standby *$", command))
    both = [standby, *(server(play, name) for name in ("server-0", "server-1"))]
    for pid in both if last == "server" else reversed(both):
        os.kill(pid, signal.SIGKILL)
    assert play.end() != 0
    assert re.search(r"server-[01] on \S+ is lost: .*, and no standby is there to take its place", play.text)
    assert_quiet(play.text)
    assert play.left() == {}
    again = start(*settings)
    again.until_resumed()
    assert_stops_whole(again)
