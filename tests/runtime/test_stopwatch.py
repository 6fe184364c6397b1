"""Where a role's time and CPU seconds go."""

import pytest

from hpcps.execution.stopwatch import Stopwatch


class Clock:
    """Passes when told to."""

    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clocks():
    return Clock(), Clock()


def test_alone_all_time_goes_somewhere(clocks):
    """It waits in three polls, takes a message, combines, writes a line, and waits."""
    wall, cpu = clocks
    watch = Stopwatch(wall, cpu, alone=True)

    def work(seconds, of_them_cpu):
        wall.now += seconds
        cpu.now += of_them_cpu

    for _ in range(3):
        watch.enter()
        watch.rest("wait")
        work(1.0, 0.125)
    watch.enter()
    watch.work()
    work(0.5, 0.5)
    watch.charge("exchange")
    work(2.0, 4.0)
    watch.charge("combine")
    watch.leave()
    watch.enter()
    watch.work()
    work(0.25, 0.25)
    watch.charge("exchange")
    taken = watch.take()
    assert (taken["wait"], taken["exchange"], taken["combine"]) == (3.0, 0.75, 2.0)
    assert (taken["cpu_wait"], taken["cpu_exchange"], taken["cpu_combine"]) == (0.375, 0.75, 4.0)
    assert taken["cpu"] == 4.75, "waiting is not counted"
    watch.leave()
    watch.enter()
    watch.rest("wait")
    work(1.0, 0.0)
    watch.enter()
    watch.work()
    watch.charge("exchange")
    assert watch.take()["wait"] == 1.0


def test_a_slowed_step_is_computing_while_nothing_is_done(clocks):
    wall, cpu = clocks
    watch = Stopwatch(wall, cpu, alone=True)
    for task in ("wait", "train", "train"):
        watch.enter(task)
        watch.rest(task)
        wall.now += 1.0
    watch.enter("train")
    watch.work()
    taken = watch.take()
    assert (taken["wait"], taken["compute"]) == (1.0, 2.0)


def test_others_turns_are_waiting_and_their_cpu_seconds_theirs(clocks):
    wall, cpu = clocks
    watch = Stopwatch(wall, cpu)
    for _ in range(2):
        watch.enter()
        wall.now += 0.5
        cpu.now += 0.5
        watch.leave()
        wall.now += 3.0
        cpu.now += 3.0
    watch.enter()
    taken = watch.take()
    assert (taken["exchange"], taken["wait"], taken["cpu"]) == (1.0, 6.0, 1.0)
