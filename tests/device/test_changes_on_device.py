"""What roles do with vectors in device memory gives what numpy gives on the host, bit for bit."""

from types import SimpleNamespace

import numpy as np
import pytest
from definitions import array, tensor
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rules_on_device import EXAMPLES, LAYOUT, smaller

from hpcps.attacks import Drop, FreeRider, Gaussian, Infinite, Nan, Negative, Random, RandomScale, SignFlip, Zero
from hpcps.numerics.device import changes, packing
from hpcps.numerics.layout import Layout
from hpcps.numerics.packing import pack
from hpcps.protocol.messages import Peer
from hpcps.roles.attacker import Attacker

pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")  # of numpy's, as interpreter
ATTACKS = [
    Negative(scale=6.1),
    SignFlip(),
    Zero(),
    Nan(),
    Infinite(),
    Random(),
    RandomScale(),
    Gaussian(around="own"),
    Drop(),
    FreeRider(),
    FreeRider(sends="noise"),
]


@st.composite
def vectors(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    layout = Layout.of(
        [(str(i), (s,)) for i, s in enumerate(draw(st.lists(st.sampled_from([0, 1, 4, 9, 40, 64]), max_size=6)))]
    )
    values = rng.choice(np.array([0.0, -0.0, 1.5, 1e-45, 3.4e38, -7.1], np.float32), layout.size)
    bad = rng.random(layout.size) < draw(st.sampled_from([0.0, 0.03]))
    values[bad] = rng.choice(np.array([np.nan, np.inf, -np.inf], np.float32), int(bad.sum()))
    shift = draw(st.integers(0, 2))
    there = tensor(np.concatenate([np.full(shift, 7), values, [7]]).astype(np.float32))
    return layout, values, there, there[shift : shift + layout.size], rng.random(len(layout.blocks)) < 0.6, rng


@settings(EXAMPLES, max_examples=80)
@given(case=vectors(), what=st.sampled_from(["clear", "fill", "scale", "spoil", "put", "add", "pack"]))
def test_changes_are_those_of_numpy(case, what):
    layout, values, whole, vector, mask, rng = case
    want, spread = values.copy(), layout.spread(mask)
    factor = float(rng.choice([-6.1, 1.0, 0.3]))
    payload = rng.standard_normal(int(spread.sum()), dtype=np.float32)
    before = array(whole).copy()
    with smaller(32), np.errstate(over="ignore", invalid="ignore"):
        if what == "clear":
            changes.clear(layout, vector, mask)
            want[spread] = 0
        elif what == "fill":
            changes.fill(layout, vector, mask, factor)
            want[spread] = np.float32(factor)
        elif what == "scale":
            changes.scale(layout, vector, mask, factor)
            want[spread] = want[spread].astype(np.float64) * factor
        elif what == "spoil":
            changes.spoil(layout, vector, mask)
            for block, chosen in zip(layout.blocks, mask, strict=True):
                part = want[block.offset : block.stop]
                if chosen and not np.isfinite(part).all():
                    part[:] = np.nan
        elif what == "put":
            changes.put(layout, tensor(payload), mask, vector)
            want[spread] = payload
        elif what == "add":
            finite = changes.add(layout, tensor(payload), mask, vector, factor)
            want[spread] += payload * np.float32(factor)
            assert bool(finite) is bool(np.isfinite(want[spread]).all())
        else:
            out = tensor(np.full(layout.size, 7))
            got = packing.pack(layout, vector, mask, out, clear=True)
            np.testing.assert_array_equal(array(got), pack(layout, values, mask, np.empty_like(values)))
            want[spread] = 0
    np.testing.assert_array_equal(array(vector), want)
    outside = np.ones(len(before), np.bool_)
    outside[vector.storage_offset() : vector.storage_offset() + layout.size] = False
    assert array(whole)[outside].tobytes() == before[outside].tobytes()


def test_a_mask_without_blocks_and_a_layout_without_blocks_change_nothing():
    for layout in (Layout.of([]), LAYOUT):
        vector = tensor(np.ones(layout.size))
        mask = np.zeros(len(layout.blocks), np.bool_)
        changes.clear(layout, vector, mask)
        changes.spoil(layout, vector, mask)
        assert bool(changes.add(layout, vector[:0], mask, vector))
        assert array(vector).all()


def attacker(attack):
    """Return what one of three workers does under an attack, and the draws that it shares with nobody."""
    facts = SimpleNamespace(facts=SimpleNamespace(classes=3))
    run = SimpleNamespace(attack=attack, data=facts, topology=SimpleNamespace(workers=3), seed=1)
    made = Attacker(Peer("worker", 0), run, LAYOUT, np.random.default_rng(1), np.random.default_rng(2))
    for seed in range(2):
        made.see_model(
            lambda out, seed=seed: out.__setitem__(slice(None), np.random.default_rng(seed).random(len(out)))
        )
    return made


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_attacks_on_a_tensor_are_those_on_an_array(attack):
    """Also after a round in which the attack rests, because it draws in that round too."""
    attack = type(attack)(**attack.model_dump() | {"rate": 1.0 if attack.scope == "worker" else 0.5, "every": 2})
    here, there = attacker(attack), attacker(attack)
    rng = np.random.default_rng(0)
    for round in range(3):
        update = rng.standard_normal(LAYOUT.size, dtype=np.float32)
        sent, vector = rng.random(len(LAYOUT.blocks)) < 0.8, tensor(update)
        want = here.corrupt(update, sent, round, 0)
        got = there.corrupt(vector, sent, round, 0)
        np.testing.assert_array_equal(got, want)
        np.testing.assert_array_equal(array(vector), update)
        assert want.any() or round == 1


def test_an_attack_that_derives_from_one_with_a_factor_runs_its_own_code():
    class Doubled(Negative):
        def corrupt(self, block, context):
            block *= 2

    update = tensor(np.ones(LAYOUT.size))
    attacker(Doubled(rate=1.0)).corrupt(update, np.ones(len(LAYOUT.blocks), np.bool_), 0, 0)
    assert (array(update) == 2).all()
