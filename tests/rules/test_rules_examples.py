"""What matters about each rule in particular: edge counts, thresholds, ties, and its keys."""

from typing import Any

import numpy as np
import pytest

from hpcps.numerics.layout import Layout
from hpcps.numerics.updates import Updates
from hpcps.registry import active
from hpcps.rules import Average, Dnc, Median, Monna, Phocas, Rule, TrimmedMean, Zeno
from hpcps.rules.context import Arrays, Context

ONE = Layout.of([("w", (1,))])


def column(*values: float) -> Updates:
    return Updates.of(np.array(values, dtype=np.float32)[:, None], ONE)


def test_counts_dropped() -> None:
    # b = int(min((n - 2) // 2, 0.2 n)) and int(max(1, 0.2 n)), for n = 3 .. 17 and some large n
    assert [TrimmedMean().trimmed(n) for n in range(3, 18)] == [0, 0, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3]
    assert [Phocas().trimmed(n) for n in range(3, 18)] == [1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2, 2, 3, 3, 3]
    assert [TrimmedMean(trim=0.49).trimmed(n) for n in (3, 4, 5, 17)] == [0, 1, 1, 7]
    assert TrimmedMean(trim=0.29).trimmed(100) == 29, "0.29 * 100 is 28.999999999999996 in binary"
    assert Phocas(trim=0.29).trimmed(100) == 29
    for n in range(3, 2000):
        assert TrimmedMean().trimmed(n) == int(min((n - 2) // 2, 0.2 * n))


def test_phocas_keeps_the_smaller_of_two_equally_far() -> None:
    assert Phocas().combine(column(3, 1, 2)).update == [1.5]
    assert Phocas().combine(column(-3, -1, -2)).update == [-2.5]


def test_the_mean_of_huge_numbers_is_finite() -> None:
    top = float(np.finfo(np.float32).max)
    for rule in (Average(), TrimmedMean(), Median(), Phocas()):
        assert rule.combine(column(*[top] * 17)).update == [np.float32(top)]
    assert Zeno().combine(column(*[top] * 17), Context(column(top).payloads[0])).update == [np.float32(top)]
    assert Average().combine(column(top, -top, 3.0)).update == [1.0]


@pytest.mark.parametrize("rule", [Average(), TrimmedMean(), TrimmedMean(trim=0), Median(), Phocas(), Zeno()])
def test_the_sign_of_zero_leaves_no_trace(rule: Rule) -> None:
    assert not np.signbit(rule.combine(column(*[-0.0] * 6), Context(column(1.0).payloads[0])).update[0])


@pytest.mark.parametrize(("rho", "accepts"), [(-1e-9, True), (0.0, False), (1e-9, False)])
def test_zeno_accepts_zero_updates_iff_rho_is_negative(rho: float, accepts: bool) -> None:
    layout = Layout.of([("w", (3,)), ("b", (2,))])
    v = np.array([1, 2, 3, 4, 5], dtype=np.float32)
    updates = np.stack([np.zeros(5, np.float32), v])
    combined = Zeno(rho=rho).combine(Updates.of(updates, layout), Context(v))
    assert combined.accepted.tolist() == [[accepts, accepts], [True, True]]
    assert np.array_equal(combined.update, v / 2 if accepts else v)


def test_zeno_thresholds_are_strict() -> None:
    rng = np.random.default_rng(5)
    layout = Layout.of([("a", (70_000,)), ("b", (10,)), ("c", (1,))])  # a spans tiles
    v = rng.standard_normal(layout.size, dtype=np.float32)
    updates = np.stack([v, -v, np.float32(2) * v])
    assert Zeno(rho=1.0).combine(Updates.of(updates[:1], layout), Context(v)).accepted.tolist() == [[False] * 3]
    assert Zeno(rho=-1.0).combine(Updates.of(updates[1:2], layout), Context(v)).accepted.tolist() == [[False] * 3]
    assert Zeno(epsilon=0.0).combine(Updates.of(updates[:1], layout), Context(v)).accepted.tolist() == [[False] * 3]
    assert Zeno(epsilon=3.0).combine(Updates.of(updates, layout), Context(v)).accepted.tolist() == [
        [True] * 3,
        [False] * 3,
        [False] * 3,
    ]
    assert Zeno(rho=-1.001, epsilon=3.001).combine(Updates.of(updates, layout), Context(v)).accepted.all()


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rho", [-10.0, 0.0])
def test_zeno_accepts_nothing_against_a_zero_or_non_finite_reference(bad: float, rho: float) -> None:
    layout = Layout.of([("good", (2,)), ("bad", (3,)), ("empty", (0,))])
    v = np.array([1, 1, bad, bad, bad], dtype=np.float32)
    if not np.isfinite(bad):
        v[3] = 0.0
    updates = np.array([[1, 1, 0, 0, 0], [1, 0.5, 1, -1, 1]], dtype=np.float32)
    combined = Zeno(rho=rho).combine(Updates.of(updates, layout), Context(v))
    assert combined.accepted.tolist() == [[True, False, False]] * 2
    assert combined.update.tolist() == [1.0, 0.75, 0.0, 0.0, 0.0]


@pytest.mark.thorough
def test_every_rule_takes_256_updates() -> None:
    rows = np.random.default_rng(1).standard_normal((256, 6), dtype=np.float32)
    for kind, rule in active().of("rules").items():
        if rule.mode == "sync" and kind not in ("mda", "smea"):  # which compare at most 262,144 subsets
            context = Context(rows[0], lambda v: float(v.sum()), np.random.default_rng(1), Arrays())
            assert np.isfinite(rule()(rows, context=context)).all(), kind


BOUNDS = {
    **dict.fromkeys(["krum", "multi_krum"], (2, 3)),
    "bulyan": (4, 3),
    **dict.fromkeys(["mda", "smea", "monna", "cge", "aksel", "dnc", "loss_score"], (2, 1)),
    **dict.fromkeys(["caf", "meamed", "trimmed_mean", "phocas"], (2, 1)),
}


@pytest.mark.parametrize("kind", BOUNDS)
def test_fewer_updates_than_the_bound_are_a_mistake_of_the_caller(kind: str) -> None:
    (a, b), f = BOUNDS[kind], 2
    rule, rows = active().of("rules")[kind](f=f), np.random.default_rng(1).standard_normal((a * f + b, 3))
    context = Context(rows[0], lambda v: float(v.sum()), np.random.default_rng(1), Arrays())
    assert np.isfinite(rule(rows, context=context)).all()
    with pytest.raises(
        ValueError, match=f"^{kind} needs at least {a} f \\+ {b} updates, and f = 2 of {len(rows) - 1}$"
    ):
        rule(rows[1:], context=context)


def test_dnc_drops_the_last_of_equal_updates() -> None:
    """Whatever the rounding of the eigenvector is: here it differs from one set of coordinates to another."""
    random = np.random.default_rng(3)
    for trial in range(50):
        rows = np.repeat(random.standard_normal((2, 40), dtype=np.float32), 5, axis=0)[random.permutation(10)]
        found = Dnc(f=2, iterations=3, coordinates=20).combine(
            Updates.of(rows, Layout.of_sizes((40,), 40)), Context(random=np.random.default_rng(trial))
        )
        assert found.accepted[:, 0].tolist() == [True] * 8 + [False] * 2


@pytest.mark.parametrize("kind", [np.array, list])
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (1e39, r"updates\[1, 2\] is 1e\+39, beyond the range of float32"),
        (None, "updates cannot be read as numbers: some are None, other objects, or integers beyond 64 bits"),
        ("1", "updates cannot be read as numbers: they are text"),
    ],
)
def test_what_is_no_float32_is_a_mistake_of_the_caller(kind: Any, value: Any, message: str) -> None:
    rows = [[1.0, 2.0, 3.0], [1.0, 2.0, value], [1.0, 2.0, 3.0]]
    if kind is np.array:
        rows = np.array(rows, object if value is None else None)
    for rule in (Average(), Median(), TrimmedMean(f=1)):
        with pytest.raises(ValueError, match=message):
            rule(rows)


def test_every_rule_with_f_has_a_bound() -> None:
    assert sorted(BOUNDS) == sorted(name for name, rule in active().of("rules").items() if "f" in rule.model_fields)


def test_a_reference_that_is_not_finite_in_one_block_spoils_that_block_only() -> None:
    layout = Layout.of([("a", (2,)), ("b", (3,))])
    rows = np.random.default_rng(1).standard_normal((4, 5)).astype(np.float32)
    own = np.array([1, 2, 3, np.nan, 5], np.float32)
    rule = Monna(f=1, per="block")
    found = rule.combine(Updates.of(rows, layout), Context(own))
    first = rule.combine(Updates.of(rows[:, :2], Layout.of([("a", (2,))])), Context(own[:2]))
    np.testing.assert_array_equal(found.update, [*first.update, 0, 0, 0])
    assert found.accepted[:, 0].sum() == first.accepted.sum() > 0
    assert not found.accepted[:, 1].any()
