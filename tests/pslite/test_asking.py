"""A node that may have been stopped asks the scheduler whether it counts as lost."""

from threading import Event
from types import SimpleNamespace

import pytest

from hpcps.transport.pslite import receiver as receivers
from hpcps.transport.pslite.meta import SCHEDULER_ID, Command, Control, Meta, NodeInfo, NodeRole
from hpcps.transport.pslite.receiver import Receiver

SCHEDULER = NodeInfo(NodeRole.SCHEDULER, "127.0.0.1", 1, SCHEDULER_ID)


@pytest.fixture
def clock(monkeypatch):
    now = SimpleNamespace(seconds=100.0)
    monkeypatch.setattr(receivers.time, "monotonic", lambda: now.seconds)
    return now


@pytest.fixture
def receiver(clock):
    members = SimpleNamespace(
        settings=SimpleNamespace(silence=4.0), me=SCHEDULER, send_control=lambda *args, **fields: None
    )
    return Receiver(members, None, Event(), None, None)


def answer(receiver):
    heartbeat = Control(Command.HEARTBEAT, (SCHEDULER,))
    receiver._handle_control(SCHEDULER_ID, Meta(control=heartbeat), heartbeat)


def test_a_process_that_has_looked_for_messages_all_the_time_need_not_ask(receiver, clock):
    clock.seconds += 1.9
    assert not receiver.was_stopped
    clock.seconds += 0.2
    assert receiver.was_stopped


def test_only_the_answer_to_its_question_counts(receiver):
    """That to the heartbeat before, which may have come before the stop, does not."""
    answered = Event()
    receiver._beat()
    receiver._ask(answered)
    answer(receiver)
    assert not answered.is_set()
    answer(receiver)
    assert answered.is_set()


def test_an_answer_that_is_lost_with_a_connection_keeps_nobody_waiting(receiver, clock):
    answered = Event()
    receiver._beat()  # this one is not answered
    receiver._ask(answered)
    answer(receiver)
    clock.seconds += 5.0
    receiver._beat()
    answer(receiver)
    assert answered.is_set()
