"""Every attack against a plain transcription of its formula, and who attacks what."""

from __future__ import annotations

from collections.abc import Callable
from math import fsum, isfinite, sqrt
from typing import Annotated, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from hpcps.attacks import Attack, AttackContext, Negative, NoAttack, Random, RandomScale, attacked_blocks, attackers
from hpcps.registry import OneOf, active

TOP = float(np.finfo(np.float32).max)
Formula = Callable[[float, list[float], list[float]], list[float]]


def negative(scale: float, u: list[float], g: list[float]) -> list[float]:
    return [-scale * x for x in u]


def random(scale: float, u: list[float], g: list[float]) -> list[float]:
    return [scale * z for z in g]


def randomscale(scale: float, u: list[float], g: list[float]) -> list[float]:
    norm, length = sqrt(fsum(x * x for x in u)), sqrt(fsum(z * z for z in g))
    return [scale * norm * z / length for z in g]


REFERENCES: dict[str, Formula] = {"negative": negative, "random": random, "randomscale": randomscale}


def kinds() -> list[str]:
    return list(active().of("attacks"))


def test_every_attack_has_a_reference() -> None:
    assert sorted(kinds()) == sorted([*REFERENCES, "none"]), "an attack needs a plain transcription of its formula here"


@pytest.mark.parametrize("kind", REFERENCES)
@settings(deadline=None, max_examples=150, derandomize=True)
@given(
    size=st.integers(0, 20),
    scale=st.sampled_from([1e-30, 0.1, 1.0, 6, 8.0, 1e30]),
    values=st.sampled_from(["random", "tied", "constant", "zero", "extreme"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_follows_its_definition(kind: str, size: int, scale: float, values: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    pool = {
        "random": rng.standard_normal(size),
        "tied": rng.integers(-2, 3, size),
        "constant": np.full(size, 0.3),
        "zero": np.zeros(size),
        "extreme": rng.choice(np.array([0.0, 1e-45, 1e-38, -1e-38, 1.0, 1e38, -1e38, TOP, -TOP]), size),
    }
    whole = np.full(size + 2, 7.0, dtype=np.float32)
    block = whole[1:-1]
    block[:] = pool[values]
    u = [float(x) for x in block]
    g = [float(x) for x in np.random.default_rng(seed + 1).standard_normal(size, dtype=np.float32)]
    attack = TypeAdapter(Annotated[Attack | NoAttack, OneOf("attacks")]).validate_python({"kind": kind, "scale": scale})
    attack.corrupt(block, AttackContext(np.random.default_rng(seed + 1)))
    assert whole[0] == whole[-1] == 7.0
    for got, want in zip(block, REFERENCES[kind](scale, u, g), strict=True):
        if abs(want) > TOP * (1 + 2**-25):  # beyond float32: an infinity, which validators refuse
            assert not isfinite(got)
            assert (got > 0) == (want > 0)
        else:
            assert abs(float(got) - want) <= max(abs(want) * 2**-24, 2**-150) * 1.001


@pytest.mark.parametrize("attack", [Negative(), Random(), RandomScale()], ids=lambda attack: attack.kind)
def test_a_diverged_worker_can_attack(attack: Any) -> None:
    block = np.array([np.nan, np.inf, -np.inf, 1.0], dtype=np.float32)
    attack.corrupt(block, AttackContext(np.random.default_rng(0)))
    assert np.isfinite(block).all() == (attack.kind == "random")


def test_noise_is_normal() -> None:
    block = np.zeros(100_000, dtype=np.float32)
    Random(scale=3.0).corrupt(block, AttackContext(np.random.default_rng(1)))
    assert abs(block.mean()) < 0.05
    assert abs(block.std() - 3.0) < 0.05
    block[:] = 0.01
    RandomScale().corrupt(block, AttackContext(np.random.default_rng(1)))
    assert abs(np.sqrt(np.square(block, dtype=np.float64).sum()) / (8 * 0.01 * sqrt(block.size)) - 1) < 1e-6
    assert abs(block.mean()) < 0.002


def test_keys_and_defaults() -> None:
    parse = TypeAdapter(Annotated[Attack | NoAttack, OneOf("attacks")]).validate_python
    assert parse({"kind": "none"}) == NoAttack()
    assert [parse({"kind": kind}).scale for kind in ("negative", "random", "randomscale")] == [6.0, 1.0, 8.0]
    assert parse({"kind": "negative", "scale": 2}) == Negative(scale=2.0, rate=0.2, scope="block")
    for wrong in (
        {"kind": "none", "rate": 0.1},
        {"kind": "negative", "scale": 0},
        {"kind": "flip"},
        {"scale": 1},
    ):
        with pytest.raises(ValidationError):
            parse(wrong)


def test_attackers_are_a_fixed_set() -> None:
    assert attackers(NoAttack(), 16, 1) == frozenset()
    assert attackers(Negative(scope="block"), 16, 1) == frozenset()
    chosen = attackers(Negative(scope="worker"), 16, 1)
    assert len(chosen) == 3
    assert chosen <= set(range(16))
    assert chosen == attackers(Random(scope="worker"), 16, 1)
    assert chosen < attackers(Random(scope="worker", rate=0.5), 16, 1)
    assert len({attackers(Negative(scope="worker"), 16, seed) for seed in range(20)}) > 10
    for rate, workers, count in [
        (0.0, 8, 0),
        (1.0, 8, 8),
        (0.2, 4, 0),
        (0.2, 5, 1),
        (0.29, 100, 29),
        (0.3, 10, 3),
    ]:
        assert len(attackers(Negative(scope="worker", rate=rate), workers, 0)) == count


def test_blocks_attacked_under_scope_worker() -> None:
    sent = np.array([True, False, True])
    attack = Negative(scope="worker")
    mask = attacked_blocks(attack, sent, 2, frozenset({2}), np.random.default_rng(0))
    assert mask.tolist() == [True, False, True]
    assert mask is not sent
    assert not attacked_blocks(attack, sent, 1, frozenset({2}), np.random.default_rng(0)).any()
    assert not attacked_blocks(NoAttack(), sent, 2, frozenset({2}), np.random.default_rng(0)).any()


def test_blocks_attacked_under_scope_block() -> None:
    attack = Negative(rate=0.2)
    everything = np.ones(5000, dtype=np.bool_)
    full = attacked_blocks(attack, everything, 0, frozenset(), np.random.default_rng(3))
    assert 0.17 < full.mean() < 0.23
    half, generator = np.arange(5000) % 2 == 0, np.random.default_rng(3)
    assert np.array_equal(attacked_blocks(attack, half, 0, frozenset(), generator), full & half)
    nothing, other = np.zeros(5000, dtype=np.bool_), np.random.default_rng(3)
    assert not attacked_blocks(attack, nothing, 0, frozenset(), other).any()
    assert generator.random() == other.random(), "what is drawn must not depend on what is sent"
    assert attacked_blocks(Negative(rate=1.0), everything, 0, frozenset(), generator).all()
    assert not attacked_blocks(Negative(rate=0.0), everything, 0, frozenset(), generator).any()


@pytest.mark.parametrize("kind", REFERENCES)
def test_called_outside_of_a_run_it_corrupts_a_copy(kind: str) -> None:
    torch = pytest.importorskip("torch")
    attack = active().of("attacks")[kind](scale=2.0)
    values = np.linspace(-1, 1, 50, dtype=np.float64)
    noise = [float(z) for z in np.random.default_rng(3).standard_normal(50, dtype=np.float32)]
    expected = REFERENCES[kind](2.0, [float(np.float32(x)) for x in values], noise)
    for update in (values, torch.from_numpy(values), values.astype(np.float32)):
        before = update.tolist()
        corrupted = attack(update, random=np.random.default_rng(3))
        assert type(corrupted) is type(update)
        assert corrupted.dtype == update.dtype
        assert corrupted.tolist() == pytest.approx(expected, rel=1e-6)
        assert update.tolist() == before
    with pytest.raises(ValueError, match=r"update must have the shape \[d\], not \[2, 2\]"):
        attack([[1.0, 2.0], [3.0, 4.0]])


def test_noise_differs_from_call_to_call() -> None:
    ones = np.ones(20, np.float32)
    assert not np.array_equal(Random()(ones), Random()(ones))


def test_an_attack_sees_the_update_only_if_it_needs_it():
    class Curious(Negative):
        needs = frozenset()

    block, context = np.ones(3, np.float32), AttackContext(np.random.default_rng(0))
    Curious(scale=2.0).replace(block, context)
    assert not block.any()
    Negative(scale=2.0).replace(block := np.ones(3, np.float32), context)
    assert block.tolist() == [-2.0] * 3
