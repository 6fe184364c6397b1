"""Which signals count."""

import os
import signal

import pytest

from hpcps.launch.stop import stops_of

pytestmark = pytest.mark.usefixtures("starts_processes")


def hear(*numbers):
    """Return what counted of signals that follow one another at once."""
    counts = []
    with stops_of(counts.append) as stops:
        for number in numbers:
            os.kill(os.getpid(), number)
    assert counts == list(range(1, len(stops) + 1))
    return stops


@pytest.mark.parametrize("again", [signal.SIGTERM, signal.SIGHUP])
def test_what_a_batch_system_says_twice_counts_once(again):
    """It tells the processes of a job, and the job's script passes on what it was told."""
    assert hear(signal.SIGTERM, again) == [signal.SIGTERM]


def test_a_person_who_is_impatient_counts():
    assert hear(signal.SIGINT, signal.SIGINT) == [signal.SIGINT, signal.SIGINT]
    assert hear(signal.SIGTERM, signal.SIGINT) == [signal.SIGTERM, signal.SIGINT]


def test_later_it_counts_again(monkeypatch):
    monkeypatch.setattr("hpcps.launch.stop._ECHO", 0.0)
    assert hear(signal.SIGTERM, signal.SIGTERM) == [signal.SIGTERM, signal.SIGTERM]


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert hear(signal.SIGHUP) == []
    finally:
        signal.signal(signal.SIGHUP, before)
