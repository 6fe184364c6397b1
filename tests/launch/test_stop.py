"""How long a launch that is to stop gets, by what it does."""

import os
import signal

import pytest

from hpcps.launch.plan import Plan, PlannedRun, Rank
from hpcps.launch.stop import GRACE, NOTICE, WRITING, StopFile, writes_checkpoint
from hpcps.numerics.state import State
from hpcps.records.checkpoint import CheckpointPart
from hpcps.records.files import Prefix
from hpcps.records.run_directory import RunDirectory

# The other method uses the timer of these tests.
pytestmark = pytest.mark.timeout(60, method="thread")

AT_ONCE = 4.0
"""Seconds; longer than it takes where nothing would be lost."""


@pytest.fixture
def plan(tmp_path):
    """Return a plan of two runs; they have been prepared, and nobody plays them yet."""
    runs = []
    for name in ("first", "second"):
        RunDirectory(tmp_path / name).create({"run_id": name})
        record = tmp_path / name / "records" / "server-0.jsonl"
        record.touch()
        os.utime(record, (0, 0))  # an earlier attempt's
        runs.append(PlannedRun(name, name, str(tmp_path / name), {}))
    plan = Plan((Rank(0, "server", 0, "localhost"),), tuple(runs))
    plan.write(tmp_path / "plan")
    os.utime(tmp_path / "plan", (1, 1))
    return plan


@pytest.fixture
def stop(tmp_path):
    return StopFile(tmp_path / "plan")


def begin(tmp_path, name):
    (tmp_path / name / "records" / "server-0.jsonl").write_text("{}\n")


def write(tmp_path, moment, *, seal=True):
    checkpoints = RunDirectory(tmp_path / "first").checkpoints
    checksum = checkpoints.write(moment, "server-0", CheckpointPart(State({}, {}), Prefix(0), 0.0))
    if seal:
        checkpoints.seal(moment, "first", {"server-0": checksum}, 2)


def test_only_a_run_that_is_under_way_gets_long(plan, stop, tmp_path):
    assert stop.grace(plan, GRACE) < AT_ONCE
    begin(tmp_path, "first")
    assert stop.grace(plan, GRACE) == GRACE
    RunDirectory(tmp_path / "first").finish(1.0)
    assert stop.grace(plan, GRACE) < AT_ONCE
    begin(tmp_path, "second")
    assert stop.grace(plan, NOTICE) == NOTICE
    RunDirectory(tmp_path / "second").finish(1.0)
    assert stop.grace(plan, GRACE) < AT_ONCE


def test_a_checkpoint_is_being_written_until_it_is_sealed(plan, tmp_path):
    begin(tmp_path, "first")
    assert not writes_checkpoint(plan)
    write(tmp_path, 10)
    assert not writes_checkpoint(plan)
    write(tmp_path, 20, seal=False)
    assert writes_checkpoint(plan)
    write(tmp_path, 20)
    assert not writes_checkpoint(plan)


@pytest.fixture
def hear(plan, stop):
    """Return a rank's handler of signals, and the list of those that end it at once."""
    ended = []
    yield stop.listener(plan, ended.append), ended
    signal.setitimer(signal.ITIMER_REAL, 0)


def left():
    return signal.getitimer(signal.ITIMER_REAL)[0]


def test_a_rank_does_not_wait_for_a_run_that_has_not_begun(hear, stop):
    handler, ended = hear
    handler(signal.SIGTERM, None)
    assert stop.requested()
    assert 0 < left() < AT_ONCE
    assert ended == []
    handler(signal.SIGALRM, None)
    assert ended == [signal.SIGTERM]


def test_a_rank_lets_a_checkpoint_be_written_to_its_end(hear, tmp_path):
    handler, ended = hear
    begin(tmp_path, "first")
    handler(signal.SIGTERM, None)
    assert AT_ONCE < left() <= NOTICE
    handler(signal.SIGTERM, None)  # the launcher passes on what the batch system has sent already
    write(tmp_path, 10, seal=False)
    handler(signal.SIGALRM, None)
    assert ended == []
    assert 0 < left() <= WRITING
    handler(signal.SIGALRM, None)
    assert ended == [signal.SIGTERM]


def test_at_once_is_at_once(hear, stop, tmp_path):
    handler, ended = hear
    begin(tmp_path, "first")
    write(tmp_path, 10, seal=False)
    stop.ask(at_once=True)
    handler(signal.SIGTERM, None)
    assert ended == [signal.SIGTERM]
    assert left() == 0
