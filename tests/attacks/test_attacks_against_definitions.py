"""Every attack that knows the honest updates against a plain float64 transcription of its formula."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import attack_transcriptions as plain
import numpy as np
import pytest
from fast import examples
from hypothesis import given, settings
from hypothesis import strategies as st

import hpcps
from hpcps.attacks import (
    AdversaryContext,
    Alie,
    Copycat,
    FangKrum,
    Mimic,
    MimicVariance,
    MinMax,
    MinSum,
    Omniscient,
    PoisonedFl,
    Rop,
    Sparse,
)
from hpcps.attacks.shifted_mean import quantile
from hpcps.numerics.layout import Layout
from hpcps.registry import active
from hpcps.rules import Average, GeometricMedian, Krum, Median, TrimmedMean
from hpcps.rules.context import Arrays

TOP = np.float32(plain.TOP)
EXTREMES = np.array([0.0, 1e-45, -1e-45, 1e-38, 1e-20, 1.0, -1.0, 3.0, 1e20, 1e38, -1e38, TOP, -TOP], np.float32)


@dataclass(frozen=True)
class Case:
    honest: Any
    own: Any
    workers: tuple[int, ...]
    byzantine: tuple[int, ...]
    seed: int

    def context(self, **more: Any) -> AdversaryContext:
        f, (h, d) = len(self.own), self.honest.shape
        layout = Layout.of([("a", (d // 2,)), ("b", (d - d // 2,))])
        random = np.random.default_rng(self.seed)
        return AdversaryContext(
            n=h + f, f=f, layout=layout, random=random, workers=self.workers, byzantine=self.byzantine, **more
        )

    @property
    def rows(self) -> Any:
        return self.honest.astype(np.float64)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    h, f, d = draw(st.integers(1, 8)), draw(st.integers(1, 4)), draw(st.integers(0, 12))
    kind = draw(st.sampled_from(["random", "tied", "identical", "constant", "zero", "extreme", "close", "sparse"]))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    shape = (h + f, d)
    values = {
        "random": lambda: rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4) + rng.standard_normal(),
        "tied": lambda: rng.integers(-2, 3, shape),
        "identical": lambda: np.broadcast_to(rng.standard_normal(d), shape),
        "constant": lambda: np.full(shape, 0.3),
        "zero": lambda: np.zeros(shape),
        "extreme": lambda: rng.choice(EXTREMES, shape),
        "close": lambda: rng.standard_normal(d) + 1e-4 * rng.standard_normal(shape),
        "sparse": lambda: rng.standard_normal(shape) * np.repeat(rng.random((h + f, 2)) < 0.6, [d // 2, d - d // 2], 1),
    }[kind]()
    rows = np.array(values, np.float32)
    places = rng.permutation(h + f)
    honest, byzantine = (tuple(sorted(part.tolist())) for part in (places[:h], places[h:]))
    return Case(rows[:h], rows[h:], honest, byzantine, seed)


VARIANTS: dict[str, list[dict[str, Any]]] = {
    "ipm": [{"epsilon": 0.5}],
    "alie": [{}, {"z": 0.3, "sign": "+"}, {"z": "auto"}],
    "min_max": [{}, {"direction": "std"}, {"direction": "sign"}],
    "min_sum": [{}, {"direction": "std", "bound": "smallest"}, {"direction": "sign"}],
    "fang_trimmed_mean": [{}, {"factor": 5}],
    "fang_krum": [{}, {"least": 1e-3, "neighbours": "n-f-1"}],
    "mimic": [{}, {"worker": 3}],
    "sparse": [{}, {"share": 0.4, "scale": 7.0, "z": 0.3, "sign": "+"}],
}
REFERENCES: dict[str, Callable[[Any, Any, Any, Any], None]] = {
    "ipm": plain.ipm,
    "alie": plain.alie,
    "min_max": plain.bounded(plain.within_diameter),
    "min_sum": plain.bounded(plain.within_sum),
    "fang_krum": plain.fang_krum,
    "sparse": plain.sparse,
}
ELSEWHERE = {"searched_ipm", "searched_alie", "mimic_variance", "copycat", "rop", "poisoned_fl"}
"""Attacks with tests of their own below."""


def attack_of(kind: str, **keys: Any) -> Any:
    return active().of("attacks")[kind](**keys)


def kinds() -> list[str]:
    attacks = active().of("attacks")
    return [kind for kind in attacks if issubclass(attacks[kind], Omniscient)]


def test_every_omniscient_attack_has_a_reference() -> None:
    assert sorted(kinds()) == sorted([*VARIANTS, *ELSEWHERE]), "an attack needs a plain transcription of its formula"


@pytest.mark.parametrize(
    ("kind", "keys"), [(kind, keys) for kind, found in VARIANTS.items() for keys in found], ids=str
)
@settings(deadline=None, max_examples=examples(60), derandomize=True)
@given(case=cases())
def test_follows_its_definition(kind: str, keys: dict[str, Any], case: Case) -> None:
    attack = attack_of(kind, **keys)
    if kind == "ipm" and np.abs(case.rows).max(initial=0) > 1e37:
        return
    before = case.honest.copy(), case.own.copy()
    got = attack.replacements(case.honest, case.own, case.context())
    assert np.array_equal(case.honest, before[0])
    assert np.array_equal(case.own, before[1])
    if kind == "fang_trimmed_mean":
        rng = np.random.default_rng(case.seed)
        draws = [rng.random(case.honest.shape[1], dtype=np.float32).astype(np.float64) for _ in case.own]
        plain.fang_trimmed_mean(attack, case.rows, case.own, got, draws)
    else:
        one = got if kind == "fang_krum" and np.array_equal(got, case.own) else got[0]
        assert one is got or (got == one).all()
        if kind == "mimic":
            plain.mimic(attack, case.rows, case.own, one, case.workers)
        else:
            REFERENCES[kind](attack, case.rows, case.own, one)


@pytest.mark.parametrize("kind", ["searched_ipm", "searched_alie"])
@settings(deadline=None, max_examples=examples(20), derandomize=True)
@given(case=cases(), index=st.integers(0, 3), keys=st.sampled_from([{}, {"step": 0.3, "start": 1.0, "evaluations": 7}]))
def test_a_search_returns_the_best_of_its_evaluations(kind: str, case: Case, index: int, keys: dict[str, Any]) -> None:
    rule = [Average(), Median(), TrimmedMean(), GeometricMedian()][index]
    seen = []

    def noted(rows: Any) -> Any:
        seen.append(rows.copy())
        return rule(rows)

    attack = attack_of(kind, **keys)
    got = attack.replacements(case.honest, case.own, case.context(rule=noted))[0]
    assert len(seen) == attack.evaluations
    order = sorted((*case.workers, *case.byzantine))
    for rows in seen:
        assert np.array_equal(rows[[order.index(worker) for worker in case.workers]], case.honest)
    plain.searched(attack, case.rows, case.own, got, rule)


@pytest.mark.parametrize("kind", ["searched_ipm", "searched_alie"])
@pytest.mark.parametrize("rule", [Average(), TrimmedMean(), Krum(f=2), GeometricMedian()], ids=lambda rule: rule.kind)
def test_a_search_evaluates_the_factors_of_its_definition(kind: str, rule: Any) -> None:
    rng = np.random.default_rng(3)
    honest = (rng.standard_normal((9, 30)) + 0.5).astype(np.float32)
    rows, seen = honest.astype(np.float64), []
    mean = plain.mean_of(rows)
    base, along = (0 * mean, -mean) if kind == "searched_ipm" else (mean, -plain.deviation_of(rows))

    def noted(every: Any) -> Any:
        seen.append(float((every[-1] - base) @ along / (along @ along)))
        return rule(every)

    def distance_of(factor: float) -> float:
        every = np.vstack((rows, [base + factor * along] * 3)).astype(np.float32)
        return plain.distance(rule(every).astype(np.float64), mean)

    got = attack_of(kind)(honest, f=3, rule=noted)
    tried = list(plain.factors(attack_of(kind), distance_of))
    assert seen == pytest.approx([factor for factor, _ in tried], rel=1e-5, abs=1e-6)
    assert len(set(seen)) >= 15
    best = max(tried, key=lambda pair: pair[1])[0]
    np.testing.assert_allclose(got, base + best * along, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("direction", ["std", "unit", "sign"])
@settings(deadline=None, max_examples=examples(25), derandomize=True)
@given(seed=st.integers(0, 2**32 - 1), h=st.integers(2, 12), offset=st.sampled_from([0.0, 1.0, 30.0]))
def test_min_max_and_min_sum_are_on_their_bounds(direction: Any, seed: int, h: int, offset: float) -> None:
    """Within 1e-5; a factor that is larger by 1e-3 is beyond."""
    rng = np.random.default_rng(seed)
    honest = (rng.standard_normal((h, 40)) + offset * rng.standard_normal(40)).astype(np.float32)
    rows = honest.astype(np.float64)
    mean = rows.mean(axis=0)
    squares = ((rows[:, None] - rows) ** 2).sum(axis=2)
    for attack, reached, bound in [
        (MinMax(direction=direction), lambda v: ((v - rows) ** 2).sum(axis=1).max() ** 0.5, squares.max() ** 0.5),
        (MinSum(direction=direction), lambda v: ((v - rows) ** 2).sum() ** 0.5, squares.sum(axis=1).max() ** 0.5),
        (
            MinSum(direction=direction, bound="smallest"),
            lambda v: ((v - rows) ** 2).sum() ** 0.5,
            squares.sum(axis=1).min() ** 0.5,
        ),
    ]:
        v = attack(honest, f=2).astype(np.float64)
        assert reached(v) == pytest.approx(bound, rel=1e-5)
        assert reached(mean + 1.001 * (v - mean)) > bound


def test_z_of_auto() -> None:
    assert quantile(50, 24) == pytest.approx(1.4260768722)  # s = 2, quantile of 24/26
    assert quantile(8, 2) == 0.0
    assert quantile(8, 1) < 0
    assert quantile(7, 5) == pytest.approx(0.6744897502)  # the Byzantine updates are a majority: 1 - 1/4
    honest = np.random.default_rng(0).standard_normal((26, 30)).astype(np.float32)
    want = honest.mean(axis=0) - 1.4260768722 * honest.std(axis=0, ddof=1)
    np.testing.assert_allclose(Alie(z="auto")(honest, f=24), want, atol=1e-5)


@pytest.mark.parametrize("neighbours", ["n-f-2", "n-f-1"])
def test_krum_chooses_what_fang_sends(neighbours: Any) -> None:
    rng = np.random.default_rng(4)
    found = 0
    for f in (1, 2, 3):
        honest = (rng.standard_normal((9, 50)) + 0.1).astype(np.float32)
        sent = FangKrum(neighbours=neighbours)(honest, f=f)
        if sent.ndim == 1:
            found += 1
            assert np.array_equal(Krum(f=f, neighbours=neighbours)(np.vstack((honest, [sent] * f))), sent)
            assert (np.sign(sent) == -np.sign(honest.mean(axis=0))).all()
    assert found == 3
    close = (rng.standard_normal((9, 50)) * 0.1 + 1).astype(np.float32)
    assert np.array_equal(FangKrum()(close, own=close[:2], f=2), close[:2])


def test_mimic_variance_learns_the_direction_and_keeps_its_worker() -> None:
    rng = np.random.default_rng(2)
    along = rng.standard_normal((5, 1)) * rng.standard_normal(30) * 3
    rounds = [(along + rng.standard_normal((5, 30))).astype(np.float32) for _ in range(7)]
    rounds[5] = 10 * rounds[5][::-1]  # another worker is the extreme one now
    state, attack = Arrays(), MimicVariance(rounds=4)
    directions = list(plain.mimic_directions([rows.astype(np.float64) for rows in rounds]))
    sent = [attack(rows, f=2, state=state) for rows in rounds]
    for rows, z, got in zip(rounds[:4], directions, sent, strict=False):
        assert np.array_equal(got, rows[np.argmax(np.abs(rows.astype(np.float64) @ z))])
    z = state["direction"]
    assert abs(z @ directions[3]) == pytest.approx(1, abs=1e-6)
    kept = next(k for k in range(5) if np.array_equal(sent[3], rounds[3][k]))
    for rows, got in zip(rounds[4:], sent[4:], strict=True):
        assert np.array_equal(got, rows[kept])
    assert np.argmax(np.abs(rounds[5] @ z)) != kept
    assert int(state["rounds"]) == 4
    assert int(state["worker"]) == kept
    # The worker that it copies does not take part: the one that is extreme now.
    rest = np.delete(rounds[6], kept, axis=0)
    case = Case(rest, rest[:1], tuple(k for k in range(5) if k != kept), (5,), 0)
    assert np.array_equal(attack.craft(rest, rest[:1], case.context(state=state)), rest[np.argmax(np.abs(rest @ z))])


def of_rounds(attack: Any, rounds: list[Any], rule: Any) -> list[tuple[Any, Any]]:
    """Return what is sent in each round, and what the rule makes of the updates."""
    state, found = Arrays(), []
    for rows in rounds:
        sent = attack(rows, f=3, rule=rule, state=state, random=np.random.default_rng(8))
        found.append((sent, rule(np.vstack((rows, [sent] * 3)))))
    return found


@pytest.mark.parametrize("keys", [{}, {"angle": 180.0, "location": 0.4}, {"angle": 250.0, "z": 3.0, "reference": 0.2}])
def test_rop_perturbs_the_last_combined_update(keys: dict[str, Any]) -> None:
    rng = np.random.default_rng(2)
    rounds = [(rng.standard_normal((7, 40)) + 0.5).astype(np.float32) for _ in range(4)]
    attack, last = Rop(**keys), None
    for rows, (sent, combined) in zip(rounds, of_rounds(attack, rounds, Median()), strict=True):
        want = plain.rop(attack, rows.astype(np.float64), last)
        np.testing.assert_allclose(sent, want, rtol=1e-5, atol=1e-5)
        last = combined.astype(np.float64)


@pytest.mark.parametrize("size", [40, 41])
def test_poisoned_fl_keeps_its_signs_and_lowers_its_factor(size: int) -> None:
    """The rule keeps the attack out at first, and lets it pass later."""
    rng, attack = np.random.default_rng(2), PoisonedFl(factor=3.0, period=4, shrink=0.5)
    rounds = [(rng.standard_normal((7, size)) + 0.5).astype(np.float32) for _ in range(30)]
    rounds[20:] = [0.01 * rows for rows in rounds[20:]]
    found = of_rounds(attack, rounds, TrimmedMean(f=3))
    signs = np.random.default_rng(8).choice(np.array([-1, 1], np.int8), size).astype(np.float64)
    want, factors = plain.poisoned_fl(attack, signs, [combined.astype(np.float64) for _, combined in found])
    assert not found[0][0].any()
    for (sent, _), expected in zip(found, want, strict=True):
        np.testing.assert_allclose(sent, expected, rtol=1e-4, atol=1e-5)
    assert 0.5 <= factors[-1] < factors[0] == 3.0
    assert all((np.sign(sent) * signs >= 0).all() for sent, _ in found)


@pytest.mark.parametrize("attack", [Rop(), PoisonedFl(period=2), Sparse()], ids=lambda attack: attack.kind)
@pytest.mark.parametrize("size", [0, 1, 5])
def test_attacks_over_rounds_stay_finite(attack: Any, size: int) -> None:
    top = np.full((4, size), TOP) * np.array([[1], [-1], [1], [1]], np.float32)
    rounds = [np.zeros((4, size), np.float32), np.ones((4, size), np.float32), top, np.zeros((4, size), np.float32)]
    for sent, _ in of_rounds(attack, [*rounds, np.full((4, size), 1e-45, np.float32), *rounds], Median()):
        assert np.isfinite(sent).all()


def test_mimic_takes_the_next_honest_worker() -> None:
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    case = Case(rows, rows[:1], (1, 4, 7), (2,), 0)
    sent = [Mimic(worker=worker).craft(rows, rows[:1], case.context()).tolist() for worker in (0, 1, 2, 7, 8)]
    assert sent == [[0, 1], [0, 1], [2, 3], [4, 5], [0, 1]]


def test_copycats_copy_their_neighbours() -> None:
    rows = np.arange(6, dtype=np.float32).reshape(3, 2)
    own = -np.ones((2, 2), np.float32)
    case = Case(rows, own, (0, 3, 4), (1, 5), 0)
    assert Copycat().craft(rows, own, case.context()).tolist() == [[2, 3], [0, 1]]
    last, state = Copycat(round="last"), Arrays()
    assert last.craft(rows, own, case.context(state=state)).tolist() == own.tolist()
    assert last.craft(rows + 10, own, case.context(state=state)).tolist() == [[2, 3], [0, 1]]
    assert last.craft(rows + 10, own, case.context(state=state)).tolist() == [[2, 3], [0, 1]]
    # Worker 4 takes the place of 3, of which nothing is known yet.
    fewer = Case(rows[1:], own, (0, 4), (1, 5), 0)
    assert last.craft(rows[1:], own, fewer.context(state=state)).tolist() == [[-1, -1], [10, 11]]


@pytest.mark.sample(24)
@pytest.mark.parametrize("kind", kinds())
@pytest.mark.parametrize(
    "honest",
    [
        np.ones((1, 5), np.float32),
        np.full((4, 5), 1.7, np.float32),
        np.zeros((4, 5), np.float32),
        np.full((3, 4), TOP) * np.array([[1], [-1], [1]], np.float32),
        np.array([[1e-45, -1e-45], [0, 1e-45], [3e-45, 0]], np.float32),
        np.array([[1, 0, 0], [0, 0, 2], [0, 3, 0]], np.float32),
        np.zeros((3, 0), np.float32),
        np.random.default_rng(0).standard_normal((256, 3)).astype(np.float32),
    ],
    ids=["one", "identical", "zero", "huge", "denormal", "skipped", "empty", "many"],
)
def test_edge_cases_stay_finite(kind: str, honest: Any) -> None:
    for f in (1, 3):
        sent = attack_of(kind)(honest, f=f, rule=Median())
        assert sent.shape in (honest.shape[1:], (f, honest.shape[1]))
        assert sent.dtype == np.float32
        assert np.isfinite(sent).all()
        if len(honest) == 1 and kind in {"alie", "min_max", "min_sum", "mimic"}:
            assert np.array_equal(sent, honest[0])


def test_small_updates_are_as_good_as_large_ones() -> None:
    """Scaling by a power of two scales what is sent, down to where float32 loses digits."""
    honest = np.random.default_rng(1).standard_normal((6, 30)).astype(np.float32)
    for attack in (MinMax(), MinSum(direction="std"), MinMax(direction="sign"), Alie(), MimicVariance()):
        for scale in (2.0**-120, 2.0**120):
            want = scale * attack(honest, f=2).astype(np.float64)
            np.testing.assert_allclose(attack((honest * scale).astype(np.float32), f=2), want, rtol=1e-6)


def test_close_updates_lose_no_digits() -> None:
    """The distances are 1e-6 of the norms: inner products of the updates themselves would hold no digit of them."""
    rng = np.random.default_rng(5)
    honest = (1000 + 1e-3 * rng.standard_normal((7, 2000))).astype(np.float32)
    rows = honest.astype(np.float64)
    v = MinMax(direction="std")(honest, f=2).astype(np.float64)
    diameter = ((rows[:, None] - rows) ** 2).sum(axis=2).max() ** 0.5
    assert ((v - rows) ** 2).sum(axis=1).max() ** 0.5 == pytest.approx(diameter, rel=1e-2)  # v itself is rounded


def test_a_notebook_gets_the_errors_of_people() -> None:
    honest = np.ones((3, 4), np.float32)
    with pytest.raises(ValueError, match=r"searched_ipm needs rule: give it, such as rule=hpcps.rules.Median"):
        attack_of("searched_ipm")(honest)
    with pytest.raises(ValueError, match="rule must return one update of 4 elements, not an array \\[3\\]"):
        attack_of("searched_alie")(honest, rule=lambda rows: np.ones(3))
    with pytest.raises(ValueError, match="blocks must be whole numbers from 0"):
        Alie()(honest, blocks=4)  # type: ignore[arg-type]
    with pytest.raises(hpcps.SpecError, match="z"):
        attack_of("alie", z="car")
    with pytest.raises(hpcps.SpecError, match="direction"):
        attack_of("min_max", direction="up")


def test_a_notebook_may_give_blocks_that_are_not_finite() -> None:
    honest = np.array([[np.nan, 1.0, 2.0], [3.0, 4.0, np.inf], [1.0, 1.0, 1.0]])
    sent = Alie(z=0)(honest, f=np.int64(2), blocks=[1, 2])
    assert sent.dtype == np.float64
    assert sent == pytest.approx([4 / 3, 2 / 3, 1])
