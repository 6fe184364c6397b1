"""The residual of a worker: what it has not sent, which is added to the next model."""

import numpy as np
import pytest
from interrupted import small
from toy_trainers import Toy

from hpcps.numerics.layout import Layout, private
from hpcps.numerics.state import PackedState
from hpcps.protocol.messages import Peer
from hpcps.roles.update.packer import Packer

LAYOUT = Layout.of([("a", (5,)), ("b", (7,)), ("c", (3,))])


def packer_of(**communication):
    run = small(topology={"servers": 1, "validators": 0, "workers": 1}, communication=communication)
    return Packer(Peer("worker", 0), run, (Peer("server", 0),), LAYOUT, private)


def steps(trainer, packer, values, round=0):
    """Take local steps that add values, and pack the update; return what is sent."""
    base = trainer.x.copy()
    trainer.x += values
    return packer.pack(trainer, base, round, 0)


def copied(packer, **communication):
    """Return a packer that resumes from a checkpoint of another."""
    other = packer_of(**communication)
    other.restore(packer.state())
    return other


def test_a_worker_that_sends_all_blocks_has_no_residual():
    """None, so that the next model is copied, not added to zeros; a checkpoint contains none either."""
    communication = {"participation": 1, "skip_rate": 0}
    packer, trainer = packer_of(**communication), Toy(LAYOUT)
    for round in range(3):
        packed = steps(trainer, packer, np.float32(round + 1), round)
        np.testing.assert_array_equal(packed.payload, np.full(LAYOUT.size, round + 1, np.float32))
        assert packer.residual is None
        assert "residual" not in packer.state().arrays
        assert copied(packer, **communication).residual is None


@pytest.mark.parametrize(
    "communication", [{"participation": 1, "skip_rate": 0.5}, {"participation": 0.5, "skip_rate": 0}]
)
def test_what_was_sent_and_the_residual_are_the_update(communication):
    """In rounds of all kinds in turn, also for a worker that resumes between them."""
    packer, trainer, kinds = packer_of(**communication), Toy(LAYOUT), set()
    for round in range(12):
        packed = steps(trainer, packer, np.float32(round + 1), round)
        sent = LAYOUT.spread(packed.mask)
        residual = np.zeros(LAYOUT.size, np.float32) if packer.residual is None else packer.residual
        np.testing.assert_array_equal(residual, np.where(sent, 0, np.float32(round + 1)))
        kinds.add((packer.residual is None, bool(sent.any())))
        resumed = copied(packer, **communication)
        assert (resumed.residual is None) == (packer.residual is None)
        np.testing.assert_array_equal(resumed.memory.values if resumed.residual is None else resumed.residual, residual)
        packer = resumed
    assert len(kinds) > 1


def test_a_residual_of_zeros_is_the_same_state_after_a_checkpoint():
    """As of blocks that are skipped and have not changed: a worker has committed to a state with a residual."""
    communication = {"participation": 0.5, "skip_rate": 0}
    packer, trainer = packer_of(**communication), Toy(LAYOUT)
    for round in range(12):
        steps(trainer, packer, np.float32(0), round)
        states = packer.honest_state(), copied(packer, **communication).honest_state()
        assert PackedState.of(states[0]).checksum() == PackedState.of(states[1]).checksum()
