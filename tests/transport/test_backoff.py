"""How a process waits that must not burn the core of another."""

from hpcps.transport.backoff import Backoff


def test_it_polls_at_full_speed_only_while_there_is_a_hurry():
    slept, hurry = [], True
    backoff = Backoff(polls=3, first=1.0, growth=2.0, longest=3.0, sleep=slept.append, hurry=lambda: hurry)
    for _ in range(3):
        backoff.wait()
    assert slept == []
    backoff.wait()
    assert slept == [1.0]
    backoff.reset()
    hurry = False
    for _ in range(3):
        backoff.wait()
    assert slept == [1.0, 1.0, 2.0, 3.0]
    hurry = True  # what was under way has come: what follows may be small again
    backoff.wait()
    assert slept == [1.0, 1.0, 2.0, 3.0]
