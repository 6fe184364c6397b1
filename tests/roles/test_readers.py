"""Which models a server must keep because a process may still read them."""

from hpcps.protocol.messages import Closed
from hpcps.protocol.roster import Roster
from hpcps.roles.sync.readers import LateReaders


def test_a_model_that_a_worker_has_not_answered_is_kept_when_another_validator_serves_it():
    """It reads that model, and then the one that its new validator has it get."""
    readers = LateReaders(Roster(servers=1, validators=2, workers=3), 0)
    readers.learn([0, 1, 2])
    assert readers.turn(1) == {1}
    handed = readers.hand_over(Closed(round=1, arrived=(0,), answered=(0,), everyone=False), last=False)
    assert handed == {0: (1,)}
    readers.learn([0, 2])
    assert readers.turn(2) == {1, 2}
    readers.learn([0, 1, 2])
    assert readers.turn(3) == {1, 3}
    readers.learn([0, 1, 2])
    assert readers.turn(4) == {4}


def test_nobody_reads_what_a_lost_worker_was_given():
    readers = LateReaders(Roster(servers=1, validators=2, workers=3), 0)
    readers.hand_over(Closed(round=0, arrived=(0,), answered=(0,), everyone=False), last=False)
    readers.learn([0, 1, 2])
    assert readers.turn(1) == {0, 1}
    readers.learn([0, 2], lost=[1])
    assert readers.turn(2) == {2}
