"""Every attack against a plain transcription of its formula, and who attacks what."""

from collections.abc import Callable
from math import fsum, inf, isfinite, isnan, nan, sqrt
from typing import Any

import numpy as np
import pytest
from fast import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcps.attacks import (
    Attack,
    AttackContext,
    AttackSchedule,
    FreeRider,
    LabelFlip,
    Late,
    Negative,
    NoAttack,
    Omniscient,
    Random,
    RandomScale,
    Silent,
    attacked_blocks,
    attackers,
)
from hpcps.registry import active

TOP = float(np.finfo(np.float32).max)
Formula = Callable[[float, list[float], list[float], list[float]], list[float]]
"""Of the scale, the block, the noise, and the last change of the model in the block."""


def length(values: list[float]) -> float:
    return sqrt(fsum(x * x for x in values))


def deviation(values: list[float]) -> float:
    if not values:
        return 0.0
    mean = fsum(values) / len(values)
    return sqrt(fsum((x - mean) ** 2 for x in values) / len(values))


def like(scale: float, example: list[float], g: list[float]) -> list[float]:
    return [scale * length(example) * z / length(g) for z in g]


CASES: dict[str, tuple[dict[str, Any], Formula]] = {
    "negative": ({}, lambda scale, u, g, c: [-scale * x for x in u]),
    "random": ({}, lambda scale, u, g, c: [scale * z for z in g]),
    "randomscale": ({}, lambda scale, u, g, c: like(scale, u, g)),
    "sign_flip": ({}, lambda scale, u, g, c: [-x for x in u]),
    "zero": ({}, lambda scale, u, g, c: [0.0 for _ in u]),
    "nan": ({}, lambda scale, u, g, c: [nan for _ in u]),
    "infinite": ({}, lambda scale, u, g, c: [inf for _ in u]),
    "gaussian": ({"around": "zero"}, lambda scale, u, g, c: [scale * z for z in g]),
    "gaussian-own": (
        {"around": "own"},
        lambda scale, u, g, c: [x + scale * deviation(u) * z for x, z in zip(u, g, strict=True)],
    ),
    "free_rider": ({"sends": "change"}, lambda scale, u, g, c: c),
    "free_rider-noise": ({"sends": "noise"}, lambda scale, u, g, c: like(1.0, c, g)),
}
"""By a name that begins with the attack's: its keys but the scale, and its formula."""

OTHERWISE = {"drop": "below", "label_flip": "below", "silent": "no formula", "late": "no formula", "none": "no formula"}
OTHERWISE |= {"slow_clock": "in tests/policies", "fast_clock": "in tests/policies"}


def attack_of(name: str, scale: float = 2.0) -> Attack:
    attack: type[Attack] = active().of("attacks")[name.partition("-")[0]]  # type: ignore[assignment]
    return attack(**CASES[name][0], **({"scale": scale} if "scale" in attack.model_fields else {}))


def kinds() -> list[str]:
    """Return the attacks that a worker carries out alone."""
    attacks = active().of("attacks")
    return [kind for kind in attacks if not issubclass(attacks[kind], Omniscient)]


def test_every_attack_has_a_reference() -> None:
    named = {name.partition("-")[0] for name in CASES}
    assert sorted(kinds()) == sorted([*named, *OTHERWISE]), "an attack needs a plain transcription of its formula here"


@pytest.mark.parametrize("name", CASES)
@settings(deadline=None, max_examples=examples(150), derandomize=True)
@given(
    size=st.integers(0, 20),
    scale=st.sampled_from([1e-30, 0.1, 1.0, 6, 8.0, 1e30]),
    values=st.sampled_from(["random", "tied", "constant", "zero", "extreme"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_follows_its_definition(name: str, size: int, scale: float, values: str, seed: int) -> None:
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
    change = rng.permutation(np.concatenate([block[: size // 2], np.ones(size - size // 2, np.float32)]))
    u, c = [float(x) for x in block], [float(x) for x in change]
    g = [float(x) for x in np.random.default_rng(seed + 1).standard_normal(size, dtype=np.float32)]
    context = AttackContext(np.random.default_rng(seed + 1), model_change=change)
    attack_of(name, scale).replace(block, context)
    assert whole[0] == whole[-1] == 7.0
    assert [float(x) for x in change] == c
    for got, want in zip(block, CASES[name][1](scale, u, g, c), strict=True):
        if isnan(want):
            assert isnan(got)
        elif abs(want) > TOP * (1 + 2**-25):  # beyond float32: an infinity, which validators refuse
            assert not isfinite(got)
            assert (got > 0) == (want > 0)
        else:
            # A sum may lose what its terms have beyond float64.
            lost = 2**-48 * scale * max(map(abs, u), default=0.0) * 10 if name == "gaussian-own" else 0.0
            assert abs(float(got) - want) <= max(abs(want) * 2**-24, 2**-150) * 1.001 + lost


@settings(deadline=None, max_examples=examples(100), derandomize=True)
@given(size=st.integers(0, 50), share=st.sampled_from([0.0, 0.001, 0.3, 0.999, 1.0]), seed=st.integers(0, 2**32 - 1))
def test_drop_follows_its_definition(size: int, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    block = rng.choice(np.array([1e-45, 1.0, -1e38, TOP], np.float32), size)
    drawn = np.random.default_rng(seed + 1).random(size, dtype=np.float32)
    expected = [0.0 if z < share else float(x) for x, z in zip(block, drawn, strict=True)]
    active().of("attacks")["drop"](share=share).corrupt(block, AttackContext(np.random.default_rng(seed + 1)))  # type: ignore[attr-defined]
    assert block.tolist() == expected
    assert share < 1 or not block.any()


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 300), st.lists(st.integers(0, 10_000), max_size=40))
def test_label_flip_follows_its_definition(classes: int, values: list[int]) -> None:
    labels = np.array([value % classes for value in values], np.int64)
    labels.flags.writeable = False
    flipped = LabelFlip().relabelled(labels, classes)
    assert flipped.dtype == np.int64
    assert flipped.tolist() == [classes - 1 - value % classes for value in values]


@pytest.mark.parametrize("attack", [Negative(), Random(), RandomScale()], ids=lambda attack: attack.kind)
def test_a_diverged_worker_can_attack(attack: Any) -> None:
    block = np.array([np.nan, np.inf, -np.inf, 1.0], dtype=np.float32)
    attack.corrupt(block, AttackContext(np.random.default_rng(0)))
    assert np.isfinite(block).all() == (attack.kind == "random")


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


@pytest.mark.parametrize("name", CASES)
def test_called_outside_of_a_run_it_corrupts_a_copy(name: str) -> None:
    torch = pytest.importorskip("torch")
    attack = attack_of(name)
    values = np.linspace(-1, 1, 50, dtype=np.float64)
    noise = [float(z) for z in np.random.default_rng(3).standard_normal(50, dtype=np.float32)]
    change = values[::-1] / 3
    expected = CASES[name][1](
        2.0, [float(np.float32(x)) for x in values], noise, [float(np.float32(x)) for x in change]
    )
    for update in (values, torch.from_numpy(values), values.astype(np.float32)):
        before = update.tolist()
        corrupted = attack(update, random=np.random.default_rng(3), model_change=change)
        assert type(corrupted) is type(update)
        assert corrupted.dtype == update.dtype
        assert corrupted.tolist() == pytest.approx(expected, rel=1e-6, nan_ok=True)
        assert update.tolist() == before
    with pytest.raises(ValueError, match=r"update must have the shape \[d\], not \[2, 2\]"):
        attack([[1.0, 2.0], [3.0, 4.0]])


def test_what_cannot_be_called_says_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"free_rider needs the last change of the global model: give it in `model_ch"):
        FreeRider()([1.0, 2.0])
    with pytest.raises(ValueError, match="model_change has 3 elements, the update has 2"):
        FreeRider()([1.0, 2.0], model_change=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match=r"label_flip acts on the labels .* call its relabel\(labels, classes\)"):
        LabelFlip()([1.0, 2.0])
    for attack in (Silent(), Late(seconds=3)):
        with pytest.raises(ValueError, match=f"{attack.kind} acts on when a worker sends .*: use it in a run"):
            attack([1.0, 2.0])


@pytest.mark.parametrize(
    ("keys", "acting"),
    [
        ({}, [*range(12)]),
        ({"every": 4}, [0, 4, 8]),
        ({"every": 5, "on": 2}, [0, 1, 5, 6, 10, 11]),
        ({"every": 3, "on": 3}, [*range(12)]),
        ({"from_epoch": 2}, [*range(6, 12)]),
        ({"from_epoch": 1, "every": 2}, [4, 6, 8, 10]),
    ],
)
def test_schedules(keys: dict[str, int], acting: list[int]) -> None:
    schedule = AttackSchedule(**keys)
    assert [round for round in range(12) if schedule.active(round, epoch=round // 3)] == acting


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
