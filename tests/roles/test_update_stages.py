"""Each stage of a worker's update by itself; `test_residual.py` plays them together."""

from types import SimpleNamespace

import numpy as np
import pytest
from interrupted import small

from hpcps.compression import Codec
from hpcps.numerics.layout import Layout, private
from hpcps.protocol.messages import Peer
from hpcps.roles.update.attacker import Attacker
from hpcps.roles.update.choice import Choice, UpdateChoice
from hpcps.roles.update.memory import ErrorFeedback, ErrorReset, UpdateMemory
from hpcps.roles.update.partitions import UpdatePartitions
from hpcps.seeds import generator

LAYOUT = Layout.of([("a", (2,)), ("b", (3,)), ("c", (1,))])
BASE = np.arange(6, dtype=np.float32)


def trainer(values):
    return SimpleNamespace(copy_to=lambda out: np.copyto(out, np.asarray(values, np.float32)))


def choice(sent, withheld=False, lost=False):
    return Choice(np.array(sent, np.bool_), withheld, lost, 0.0)


def memory_of(**compression):
    run = small(communication={"compression": compression} if compression else {})
    return UpdateMemory.of(run, LAYOUT, Codec.of(run.communication.compression, LAYOUT), private)


def test_error_reset_keeps_the_blocks_that_are_not_sent_for_the_next_model():
    memory = memory_of()
    assert isinstance(memory, ErrorReset)
    assert memory.residual is None
    update = memory.take(trainer(BASE + 1), BASE, choice([1, 0, 1]))
    np.testing.assert_array_equal(update, np.ones(6))
    memory.release(np.array([1, 0, 1], np.bool_), np.zeros(3, np.bool_))
    np.testing.assert_array_equal(memory.residual, [0, 0, 1, 1, 1, 0])
    memory.take(trainer(BASE + 2), BASE, choice([1, 1, 1]))
    memory.release(np.ones(3, np.bool_), np.zeros(3, np.bool_))
    assert memory.residual is None, "the network contains all that was sent"


def test_error_reset_of_lost_steps_is_zero():
    memory = memory_of()
    np.testing.assert_array_equal(memory.take(trainer(BASE + 1), BASE, choice([0, 0, 0], True, True)), np.zeros(6))


@pytest.mark.parametrize("lost", [False, True])
def test_error_feedback_adds_each_difference_to_what_is_left(lost):
    memory = memory_of(kind="int8", memory="residual")
    assert isinstance(memory, ErrorFeedback)
    np.testing.assert_array_equal(memory.take(trainer(BASE + 1), BASE, choice([1, 1, 1])), np.ones(6))
    memory.errors[:] = 0.25  # what an encoding loses
    second = memory.take(trainer(BASE + 2), BASE, choice([1, 1, 1], lost, lost))
    np.testing.assert_array_equal(second, np.full(6, 0.25 if lost else 2.25))
    memory.release(np.ones(3, np.bool_), np.array([0, 1, 0], np.bool_))
    np.testing.assert_array_equal(memory.values[2:5], np.zeros(3), "an attacked block is not the worker's own")
    assert memory.residual is None


def test_nesterov_sends_the_difference_and_the_decayed_momentum():
    memory = memory_of(kind="onebit", memory="nesterov", momentum=0.5)
    np.testing.assert_allclose(memory.take(trainer(BASE + 1), BASE, choice([1, 1, 1])), np.full(6, 1.5))
    memory.values[:] = 0
    np.testing.assert_allclose(memory.take(trainer(BASE + 1), BASE, choice([1, 1, 1])), np.full(6, 1.75))


def test_a_block_that_is_not_finite_begins_anew():
    memory = memory_of(kind="int8", memory="residual")
    memory.take(trainer([np.nan, 1, 1, 1, 1, 1]), np.zeros(6, np.float32), choice([1, 1, 1]))
    again = memory.take(trainer(np.ones(6)), np.zeros(6, np.float32), choice([1, 1, 1]))
    np.testing.assert_array_equal(again, [1, 1, 2, 2, 2, 2])


def choices(**tables):
    run = small(**tables)
    streams = {
        name: generator(1, "worker", 0, name) for name in ("participation", "skipping", "delay", "choice", "noise")
    }
    attacker = Attacker(
        Peer("worker", 0), run.attack, run.topology.workers, 1, 10, LAYOUT, streams["choice"], streams["noise"]
    )
    drawn = UpdateChoice(run, 3, attacker, streams)
    return [drawn.draw(round, 0, 1 if round == 5 else None) for round in range(200)]


def test_participation_and_skipping_are_drawn_apart():
    """A worker that is absent draws its blocks all the same: the later rounds are those of one that never is."""
    some, always = (choices(communication={"participation": share, "skip_rate": 0.3}) for share in (0.6, 1.0))
    assert 60 < sum(each.withheld for each in some) < 110
    for one, other in zip(some, always, strict=True):
        assert one.withheld == (not one.sent.any()) or not other.sent.any()
        assert one.withheld or (one.sent == other.sent).all()
    assert some[5].withheld, "it abandoned the round"


def test_the_blocks_of_an_update_are_cut_for_their_combiners():
    run = small(topology={"servers": 2, "validators": 0}, transport={"partition": 64})
    servers = (Peer("server", 0), Peer("server", 1))
    layout = Layout.of([("a", (20,)), ("b", (30,))])
    partitions = UpdatePartitions(run, servers, layout, private)
    values, sent = np.arange(50, dtype=np.float32), np.array([1, 0], np.bool_)
    parts, payload = partitions.cut(values, sent)
    np.testing.assert_array_equal(payload, values[:20])
    assert {part.combiner for part in parts} == set(servers)
    np.testing.assert_array_equal(np.sort(np.concatenate([part.payload for part in parts])), values[:20])
    values[3] = np.inf
    parts, _ = partitions.cut(values, sent)
    whole = np.concatenate([part.payload for part in parts])
    assert np.isnan(whole).all(), "a block in several partitions is refused in all of them"
