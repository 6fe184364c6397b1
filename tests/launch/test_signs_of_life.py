"""Who counts as silent: a process of which others see no sign of life while they give some themselves."""

import os
import shutil

import pytest

from hpcps.launch.arrivals import Arrivals
from hpcps.launch.guard import LostGuards, look_interval
from hpcps.launch.plan import Plan, PlannedRun, Rank
from hpcps.launch.signs_of_life import SignsOfLife
from hpcps.launch.unreachable import unreachable
from hpcps.transport.process_group import LostError

pytestmark = pytest.mark.usefixtures("starts_processes")

TIMEOUT = 32.0
LOOK = 2 * look_interval(TIMEOUT)
WORLD = tuple(Rank(rank, "worker", rank, f"n{rank}") for rank in range(3))


@pytest.fixture
def observe(tmp_path):
    """Return what lets time pass: a look of the observer, before which some processes have given a sign of life."""
    now = [0.0]
    guards = LostGuards(tmp_path / "plan")
    guards.path.mkdir()
    run = PlannedRun("r", "r", str(tmp_path), {"run": {"transport": {"timeout": TIMEOUT}}})
    plan = Plan(WORLD, (run,))

    def sign(rank):
        guards.file(f"worker-{rank}").touch()
        os.utime(guards.file(f"worker-{rank}"), (now[0], now[0]))

    for rank in range(3):
        sign(rank)

    def begin(observer, gone=()):
        signs = SignsOfLife(plan, tmp_path / "plan", observer, TIMEOUT, clock=lambda: now[0], reach=lambda _: gone)

        def look(*alive, passed=LOOK, most=float("inf")):
            now[0] += passed
            for rank in alive:
                sign(rank)
            signs.check(most)

        return look

    begin.guards = guards
    return begin


@pytest.mark.parametrize("observer", [WORLD[0], None], ids=["a process", "hpcps run"])
def test_a_silent_process_is_named_after_the_timeout(observe, observer):
    look = observe(observer)
    for _ in range(1 + int(TIMEOUT / LOOK)):
        look(0, 1)
    with pytest.raises(LostError, match=r"worker-2 on n2 is lost: it has given no sign of life for 36 s, because it"):
        look(0, 1)


def test_a_process_that_works_for_long_is_not_silent(observe):
    look = observe(WORLD[0])
    for number in range(50):
        look(0, 1, *([2] if number % 4 == 0 else []))


def test_nobody_is_silent_while_all_are(observe):
    """A batch system has suspended the job, or the file system does not answer."""
    look = observe(WORLD[0])
    look(0, 1, 2)
    for _ in range(50):
        look()
    look(0)
    look(0, 1, 2, passed=1e6)  # it was suspended with its guard, and looks again before the others go on
    look(0)
    look(0, 1, 2)


def test_a_process_that_has_ended_or_not_started_is_not_silent(observe):
    look = observe(WORLD[0])
    look(0, 1, 2)
    observe.guards.file("worker-1").unlink()
    for _ in range(50):
        look(0, 2)


def test_the_launch_ends_sooner_while_processes_start(observe):
    look = observe(None)
    look(0, 1, 2)
    look(0, 1, most=5.0)
    with pytest.raises(LostError, match="worker-2 on n2"):
        look(0, 1, most=5.0)


def begin_without(observe, *absent):
    """Let no process of some ranks begin; return what lets time pass for `hpcps run`."""
    for rank in absent:
        observe.guards.file(f"worker-{rank}").unlink()
    return observe(None)


def test_a_process_that_does_not_begin_is_named_though_it_has_no_guard(observe):
    """Its host may be gone before the process has one."""
    look = begin_without(observe, 1, 2)
    look(0, most=5.0)
    look(0, 1, most=5.0)
    look(0, 1, most=13.0)
    look(0, 1, most=13.0)
    with pytest.raises(LostError, match=r"worker-2 on n2 is lost: it has not begun 16 s after worker-1, the last one"):
        look(0, 1, most=13.0)


@pytest.mark.parametrize("way", ["slow", "nobody has begun", "after the start", "ended", "joined"])
def test_a_process_that_has_no_guard_may_be_slow_or_have_ended(observe, way):
    """The others may have been slow too; a script that has ended without init() has left a file."""
    look = begin_without(observe, *range(3) if way == "nobody has begun" else [2])
    if way in ("ended", "joined"):
        folder = Arrivals(observe.guards.path.with_name("plan")).path
        folder.mkdir()
        folder.joinpath("worker-2" if way == "joined" else "worker-2.ended").touch()
    if way == "slow":
        look = begin_without(observe, 0, 1)
        for _ in range(10):
            look(most=1.0)
    for _ in range(10):
        look(*([] if way == "nobody has begun" else [0, 1]), most=float("inf") if way == "after the start" else 1.0)


def test_a_host_that_does_not_answer_is_named_if_no_process_has_begun(observe):
    """Some launchers start no process before they have reached all hosts."""
    shutil.rmtree(observe.guards.path)
    look = observe(None, gone=["n1"])
    look(most=LOOK)
    look(most=LOOK)
    with pytest.raises(
        LostError, match=r"worker-1 on n1 is lost: no process has begun for 12 s, and the host does not"
    ):
        look(most=LOOK)


def test_hosts_answer_if_they_accept_or_refuse_a_connection():
    """This host does not count. If no other one answers, a firewall may be the cause."""
    assert unreachable(["n1.invalid", "n1.invalid"]) == ["n1.invalid"]
    assert unreachable(["127.0.0.1", "n1.invalid"]) == ["n1.invalid"]
    assert unreachable(["127.0.0.1", "n1.invalid", "n2.invalid"]) == []
    assert unreachable(["127.0.0.1"]) == []
