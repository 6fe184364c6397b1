"""The background thread of a role: what it returns, what it costs, and how it ends."""

import signal
import threading
import time

import numpy as np
import pytest

from hpcps.errors import RunError
from hpcps.execution.background import Background
from hpcps.execution.process import drive
from hpcps.execution.role_driver import RoleDriver
from hpcps.execution.stopwatch import Stopwatch
from hpcps.protocol.messages import Peer
from hpcps.records.files import read_lines
from hpcps.records.run_directory import RunDirectory
from hpcps.records.writer import RecordWriter
from hpcps.roles.events import AwaitBackground, Compute, Computed, Finish, InBackground, Record, Start
from hpcps.transport.backoff import Backoff
from hpcps.transport.inproc import Exchange


def never():
    raise AssertionError("nobody cancels it")


def burn(seconds, clock=time.thread_time):
    """Use a core for so long."""
    until = clock() + seconds
    while clock() < until:
        sum(range(1000))


def test_it_runs_in_the_background_and_returns_the_result():
    gate = threading.Event()
    with Background() as background:
        assert background.take() is None
        for number in (1, 2):
            gate.clear()
            background.begin("evaluate", number, lambda number=number: gate.wait(10) and number, never)
            assert background.busy
            assert background.take() is None
            gate.set()
            background.wait()
            finished = background.take()
            assert (finished.task, finished.round, finished.result, finished.error) == (
                "evaluate",
                number,
                number,
                None,
            )
            assert not background.busy
            assert background.take() is None


def test_what_it_raises_is_handed_back():
    with Background() as background:
        background.begin("evaluate", 7, lambda: 1 // 0, never)
        background.wait()
        assert isinstance(background.take().error, ZeroDivisionError)


def test_numbers_that_overflow_there_do_not_warn():
    with Background() as background:
        background.begin("evaluate", 0, lambda: np.float32(3e38) * np.float32(3e38), never)
        background.wait()
        assert background.take().result == np.inf


def test_its_cpu_seconds_are_its_own():
    with Background() as background:
        background.begin("evaluate", 0, lambda: burn(0.3), never)
        before = background.foreground_cpu()
        time.sleep(0.1)
        assert background.foreground_cpu() - before < 0.05
        background.wait()
        assert 0.3 <= background.take().cpu < 0.35
        burn(0.1)
        assert 0.1 <= background.foreground_cpu() - before < 0.2


def test_it_ends_with_the_role():
    stopped, threads = threading.Event(), threading.active_count()
    with Background() as background:
        background.begin("evaluate", 0, lambda: stopped.wait(10), stopped.set)
    assert stopped.is_set()
    assert threading.active_count() == threads


def test_a_signal_interrupts_who_waits_for_it():
    class Stopped(BaseException):
        pass

    def stop(number, frame):
        raise Stopped

    stopped, before = threading.Event(), signal.signal(signal.SIGALRM, stop)
    try:
        began = time.monotonic()
        with Background() as background:
            background.begin("evaluate", 0, lambda: stopped.wait(30), stopped.set)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            with pytest.raises(Stopped):
                background.wait()
        assert time.monotonic() - began < 5
    finally:
        signal.signal(signal.SIGALRM, before)


class Coordinator:
    """A role that has something measured beside steps of 0.2 CPU seconds, and records both."""

    peer, run_id, round, device, keeps_checkpoints = Peer("validator", 0), "run", 3, "cpu", False

    def __init__(self, measure):
        self.measure, self.threads = measure, []

    def handle(self, event):
        match event:
            case Start():
                yield InBackground("evaluate", self.measure, never)
                self.round = 5
                yield Compute("train", lambda: burn(0.2))
            case Computed("train"):
                yield AwaitBackground()
                yield Record("round")
                yield Finish()
            case Computed("evaluate", result, time):
                yield Record("evaluation", {"found": result, "at": time})


def play(folder, measure):
    directory = RunDirectory(folder)
    directory.create({"run_id": "test"})
    with RecordWriter(folder, "test", "validator", 0, "here") as record, Background() as background:
        stopwatch = Stopwatch(cpu=background.foreground_cpu, alone=True)
        transport = Exchange().endpoint(Coordinator.peer)
        node = RoleDriver(
            Coordinator(measure), transport, record, directory, stopwatch=stopwatch, background=background
        )
        try:
            drive(node, 10.0, Backoff())
        except Exception:
            return node, []
    return node, read_lines(folder / "records/validator-0.jsonl").lines


def test_a_node_charges_each_its_own(tmp_path):
    _, (evaluation, line, end) = play(tmp_path, lambda: burn(0.4) or 17)
    assert (evaluation["event"], evaluation["found"], end["reason"]) == ("evaluation", 17, "finished")
    assert 0.4 <= line["cpu_evaluate"] < 0.45
    assert 0.2 <= line["cpu_train"] < 0.3
    assert line["cpu_wait"] < 0.1
    assert 0.6 <= line["cpu"] < 0.8
    assert line["evaluate"] >= 0.4
    assert line["compute"] >= 0.2
    # It waited for the measurement once its steps were done, and both columns together hold that time.
    assert line["wait"] > 0.0
    assert line["time"] >= line["evaluate"]


def test_a_failure_there_is_the_role_s_and_names_the_round_of_the_model(tmp_path):
    def fail():
        raise RunError("the test set is gone")

    node, _ = play(tmp_path, fail)
    assert (node.phase, node.round) == ("evaluate", 3)


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
