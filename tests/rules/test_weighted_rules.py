"""Rules and pre-aggregators with weights: their exact definitions, repeated updates, and what takes no weights."""

from fractions import Fraction
from itertools import pairwise
from typing import ClassVar, Literal
from unittest.mock import patch

import numpy as np
import pytest
from fast import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcps.numerics import blocks
from hpcps.numerics.layout import Layout
from hpcps.numerics.mixture import Mixture
from hpcps.numerics.updates import Destination, Updates
from hpcps.registry import active
from hpcps.rules import (
    Average,
    Bucketing,
    CenteredClipping,
    Clipping,
    Foundation,
    GeometricMedian,
    Meamed,
    Median,
    Nnm,
    NormClipping,
    Phocas,
    PreAggregator,
    Rule,
    TrimmedMean,
    combine_finite,
)
from hpcps.rules.context import Arrays, Context
from hpcps.rules.preaggregation import mixture

LAYOUT = Layout.of([("a", (7,)), ("b", (4,))])


def between(pairs, low, high):
    """The weighted mean of what the cumulative weights `low` to `high` of (value, weight) pairs belong to."""
    total, kept, before = Fraction(0), Fraction(0), Fraction(0)
    for value, weight in pairs:
        part = max(Fraction(0), min(before + weight, high) - max(before, low))
        total, kept, before = total + part * value, kept + part, before + weight
    return total / kept


def middle_of(pairs, lower):
    half, passed = sum(weight for _, weight in pairs) / 2, Fraction(0)
    for (value, weight), after in pairwise([*sorted(pairs), (None, 0)]):
        passed += weight
        if passed == half and not lower:
            return (value + after[0]) / 2
        if passed >= half:
            return value
    raise AssertionError


def nearest(pairs, centre, mass):
    return between(sorted(pairs, key=lambda pair: (abs(pair[0] - centre), pair[0])), 0, mass)


ROUNDING = Fraction(1, 10**9)
"""The centre is rounded: of values that are equally near to it but for that, any may be kept."""


def average(rule, pairs, n, moved):
    return between(pairs, 0, sum(weight for _, weight in pairs))


def median(rule, pairs, n, moved):
    return middle_of(pairs, rule.middle == "lower")


def trimmed_mean(rule, pairs, n, moved):
    mass, share = sum(weight for _, weight in pairs), Fraction(rule.trimmed(n), n)
    return between(sorted(pairs), share * mass, mass - share * mass)


def phocas(rule, pairs, n, moved):
    mass, share = sum(weight for _, weight in pairs), Fraction(rule.trimmed(n), n)
    return nearest(pairs, trimmed_mean(rule, pairs, n, 0) + moved * ROUNDING, mass - share * mass)


def meamed(rule, pairs, n, moved):
    mass, share = sum(weight for _, weight in pairs), Fraction(rule.tolerated(n), n)
    return nearest(pairs, median(rule, pairs, n, 0), mass - share * mass)


COORDINATE_WISE = {
    "average": (Average(), average),
    "median": (Median(), median),
    "lower median": (Median(middle="lower"), median),
    "trimmed_mean": (TrimmedMean(f=1), trimmed_mean),
    "trimmed_mean, a share": (TrimmedMean(trim=0.3), trimmed_mean),
    "phocas": (Phocas(f=1), phocas),
    "meamed": (Meamed(f=1), meamed),
    "meamed, lower": (Meamed(f=0.4, middle="lower"), meamed),
}


@st.composite
def weighted(draw, least=3):
    """Whole values, and whole weights: sums are exact, so that ties are ties."""
    n, seed = draw(st.integers(least, 9)), draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    rows = rng.integers(-20, 21, (n, LAYOUT.size)).astype(np.float32)
    weights = rng.integers(1, draw(st.sampled_from([2, 3, 7])) + 1, n).astype(float)
    return rows, weights, draw(st.sampled_from([1.0, 0.1, 37.0]))


def updates_of(rows, weights, **more):
    return Updates(LAYOUT, list(rows), np.ones((len(rows), len(LAYOUT.blocks)), np.bool_), weights=weights, **more)


@pytest.mark.parametrize("name", COORDINATE_WISE)
@settings(max_examples=examples(60))
@given(data=weighted(), tile=st.sampled_from([1 << 15, 40]))
def test_rules_per_coordinate_equal_their_definitions(name, data, tile):
    rule, definition = COORDINATE_WISE[name]
    rows, weights, unit = data
    with patch.object(blocks, "TILE", tile), patch.object(blocks, "COLUMNS", 1):
        got = rule(rows, weights=weights * unit)
    for value, column in zip(got, rows.T, strict=True):
        pairs = [(Fraction(float(x)), Fraction(float(w))) for x, w in zip(column, weights, strict=True)]
        wanted = [float(definition(rule, pairs, len(rows), moved)) for moved in (-1, 0, 1)]
        assert any(float(value) == pytest.approx(want, rel=1e-6, abs=1e-6) for want in wanted)


@pytest.mark.parametrize("name", COORDINATE_WISE)
def test_rules_per_coordinate_on_tensors(name):
    torch = pytest.importorskip("torch")
    rule, rng = COORDINATE_WISE[name][0], np.random.default_rng(3)
    for n in (4, 5, 8):
        rows, weights = rng.integers(-9, 10, (n, 40)).astype(np.float32), rng.integers(1, 4, n).astype(float)
        got = rule(torch.from_numpy(rows), weights=weights).numpy()
        np.testing.assert_allclose(got, rule(rows, weights=weights), rtol=1e-6, atol=1e-6)


REPEATED = {
    "average": lambda share: Average(),
    "median": lambda share: Median(),
    "lower median": lambda share: Median(middle="lower"),
    "trimmed_mean": lambda share: TrimmedMean(f=share),
    "phocas": lambda share: Phocas(f=share),
    "meamed": lambda share: Meamed(f=share),
    "geometric_median": lambda share: GeometricMedian(tolerance=1e-12),
    "weiszfeld": lambda share: GeometricMedian(tolerance=0, iterations=3, start="median", smoothing=1e-3),
    "weiszfeld from the mean": lambda share: GeometricMedian(tolerance=0, iterations=5, start="mean"),
    "norm_clipping": lambda share: NormClipping(radius=20.0),
    "norm_clipping per block": lambda share: NormClipping(radius=10.0, per="block"),
    "centered_clipping": lambda share: CenteredClipping(radius=20.0, iterations=3),
    "median after clipping": lambda share: Median(before=(Clipping(radius=15.0),)),
    "average after nnm": lambda share: Average(before=(Nnm(f=share),)),
    "median after nnm per block": lambda share: Median(before=(Nnm(f=share, per="block"), Clipping(radius=30.0))),
}


@pytest.mark.parametrize("name", REPEATED)
@settings(deadline=None, max_examples=examples(40))
@given(seed=st.integers(0, 2**32 - 1), least=st.sampled_from([1, 2]))
def test_a_weight_of_three_counts_as_three_equal_updates(name, seed, least):
    # Of 4 updates one may be Byzantine, of 8 or 16 repeated ones two or four: the share is the same.
    rng = np.random.default_rng(seed)
    rows = rng.permutation(np.linspace(-40, 40, 4 * 44)).astype(np.float32).reshape(4, 44)
    weights = rng.permutation(np.array([3, 2, 2, 1]) * least)
    layout = (30, 14)
    rule, context = REPEATED[name](0.25), lambda: Context(state=Arrays())
    got = rule(rows, weights=weights, blocks=layout, context=context())
    want = rule(np.repeat(rows, weights, axis=0), blocks=layout, context=context())
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_a_weighted_geometric_median_has_the_smallest_sum():
    rng = np.random.default_rng(5)
    rows, weights = rng.standard_normal((6, 9)).astype(np.float32), np.array([1.0, 4.0, 2.5, 0.5, 1.0, 3.0])

    def total(point):
        return float((weights * np.sqrt(((rows.astype(float) - point) ** 2).sum(axis=1))).sum())

    found = GeometricMedian()(rows, weights=weights).astype(float)
    assert all(total(found) <= total(found + 1e-3 * rng.standard_normal(9)) for _ in range(200))
    heavy = np.array([1.0, 12.0, 2.5, 0.5, 1.0, 3.0])  # more than all others together: it is the median itself
    np.testing.assert_allclose(GeometricMedian()(rows, weights=heavy), rows[1], atol=1e-5)


def test_nnm_takes_a_part_of_the_last_neighbour():
    rows, weights = np.array([[0.0], [1.0], [10.0]], np.float32), np.array([3.0, 2.0, 1.0])
    # f / n = 1/3 of 6 is dropped: 4 of the mass is nearest, of which the row itself is the first.
    got = mixture([(Nnm(), 1)], updates_of_one_block(rows, weights, finite=True), None)
    want = [[3 / 4, 1 / 4, 0], [2 / 4, 2 / 4, 0], [1 / 4, 2 / 4, 1 / 4]]
    # From 1.0 the next is 0.0, of which two thirds are taken; from 10.0 it is 1.0, and then a third of 0.0.
    want[1], want[2] = [2 / 4, 2 / 4, 0], [1 / 4, 2 / 4, 1 / 4]
    np.testing.assert_allclose(got.mixing[0], want, rtol=1e-12)
    assert got.weights is not None
    assert got.weights.tolist() == [3, 2, 1]


def updates_of_one_block(rows, weights, **more):
    layout = Layout.of([("w", (rows.shape[1],))])
    return Updates(layout, list(rows), np.ones((len(rows), 1), np.bool_), weights=weights, **more)


WEIGHTED = [rule for rule in active().of("rules").usable().values() if rule.mode == "sync" and rule.weighted]


@pytest.mark.parametrize("kind", WEIGHTED, ids=lambda rule: rule.model_fields["kind"].default)
def test_equal_weights_give_the_same_bits(kind):
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((7, 5000), np.float32)
    for before in ((), (Nnm(f=1),), (Clipping(radius=60.0), Nnm(f=2, per="block"))):
        rule = kind(before=before)
        got, want = (rule(rows, weights=w, context=Context(state=Arrays())) for w in (np.full(7, 0.1), None))
        assert got.tobytes() == want.tobytes()


@pytest.mark.parametrize("name", COORDINATE_WISE)
def test_no_part_of_a_huge_value_is_kept_by_rounding(name):
    rule = COORDINATE_WISE[name][0]
    if name == "average":
        return
    rng = np.random.default_rng(8)
    for _ in range(200):
        n = 5
        # The attacker has exactly the share that is dropped, in weights whose sums are rounded.
        weights = rng.random(n - 1) * 3
        f = rule.trimmed(n) if hasattr(rule, "trimmed") else rule.tolerated(n) or 1
        share = f / n
        weights = np.append(weights, weights.sum() * share / (1 - share))
        rows = np.append(rng.standard_normal((n - 1, 3)), np.full((1, 3), 3e38), axis=0).astype(np.float32)
        order = rng.permutation(n)
        assert (np.abs(rule(rows[order], weights=weights[order])) < 10).all()


def test_weights_of_the_updates_that_have_a_block():
    rows, weights = np.array([[1, 1], [2, 2], [6, 6]], np.float32), np.array([1.0, 2.0, 3.0])
    layout, sent = Layout.of([("a", (1,)), ("b", (1,))]), np.array([[True, True], [True, True], [True, False]])
    payloads = [row[mask] for row, mask in zip(rows, sent, strict=True)]
    rule = Average(skipped="left_out")
    combined, _ = combine_finite(rule, Updates(layout, payloads, sent, weights=weights))
    np.testing.assert_allclose(combined.update, [23 / 6, 5 / 3], rtol=1e-6)
    zero, _ = combine_finite(Average(), Updates(layout, payloads, sent, weights=weights))
    np.testing.assert_allclose(zero.update, [23 / 6, 5 / 6], rtol=1e-6)


def test_values_that_are_not_finite_count_as_zero():
    rows, weights = np.ones((4, LAYOUT.size), np.float32), np.array([1.0, 2.0, 3.0, 4.0])
    rows[3, 0] = np.nan
    for rule in (Average(), Median(), TrimmedMean(f=1), Phocas(f=1), Meamed(f=1), NormClipping(radius=100.0)):
        combined, rejected = combine_finite(rule, updates_of(rows, weights))
        assert rejected.tolist() == [[False, False]] * 3 + [[True, False]]
        assert np.isfinite(combined.update).all()
        again, _ = combine_finite(rule, updates_of(np.nan_to_num(rows) * 1, weights))
        clean = rows.copy()
        clean[3, :7] = 0
        again, _ = combine_finite(rule, updates_of(clean, weights))
        assert combined.update.tobytes() == again.update.tobytes()


def test_the_result_is_added_to_the_base():
    rng = np.random.default_rng(1)
    rows, weights = rng.standard_normal((5, LAYOUT.size), np.float32), np.arange(1.0, 6.0)
    base = rng.standard_normal(LAYOUT.size).astype(np.float32)
    for rule in (Average(), Median(), TrimmedMean(f=1), Meamed(f=1), CenteredClipping(radius=1.0)):
        alone, _ = combine_finite(rule, updates_of(rows, weights), Context(state=Arrays()))
        added, _ = combine_finite(rule, updates_of(rows, weights, to=Destination(base=base)), Context(state=Arrays()))
        np.testing.assert_allclose(added.update, base + alone.update, rtol=1e-6, atol=1e-7)


def test_what_takes_no_weights_says_why():
    for kind in ("rules", "preaggregators"):
        for name, component in active().of(kind).usable().items():
            assert component.weighted or component.unweighted != PreAggregator.unweighted, name
            assert component.declarations()["weighted"] == component.weighted
    for rule in (active().of("rules").get("krum")(f=1), Median(before=(active().of("preaggregators").get("arc")(),))):
        with pytest.raises(ValueError, match=r"takes no weights: it (selects|scales) a number of updates, and no"):
            rule(np.ones((7, 2), np.float32), weights=np.arange(1.0, 8.0))


@pytest.mark.parametrize("weights", [[1.0, 2.0], [1.0, 2.0, 0.0], [1.0, 2.0, float("nan")], "abc", [[1.0, 2.0, 3.0]]])
def test_weights_are_positive_numbers(weights):
    with pytest.raises(ValueError, match="they must be 3 positive numbers, one for an update"):
        Average()(np.ones((3, 2), np.float32), weights=weights)


class Own(Rule):
    """The weighted mean, of a plugin."""

    weighted: ClassVar[bool] = True
    kind: Literal["own"] = "own"

    def aggregate(self, updates, context):
        return (updates * (context.weights / len(updates))[:, None]).sum(axis=0, dtype=np.float64).astype(np.float32)


class Plain(Rule):
    """A rule of a plugin that knows no weights."""

    kind: Literal["plain"] = "plain"

    def aggregate(self, updates, context):
        assert context.weights is None
        return updates.mean(axis=0)


class Halved(PreAggregator):
    """Scales an update by its weight, of a plugin."""

    weighted: ClassVar[bool] = True
    kind: Literal["halved"] = "halved"

    def weights(self, products, f, random, prior):
        return np.diag(prior / 2)


def test_a_plugin_that_takes_weights_gets_them():
    rows, weights = np.array([[1, 2], [3, 5], [-4, 0]], np.float32), [1.0, 2.0, 3.0]
    np.testing.assert_allclose(Own()(rows, weights=weights), Average()(rows, weights=weights), rtol=1e-6)
    np.testing.assert_allclose(Own()(rows), rows.mean(axis=0), rtol=1e-6)
    assert Plain()(rows).tolist() == rows.mean(axis=0).tolist()
    with pytest.raises(ValueError, match="plain takes no weights: it does not declare weighted = True"):
        Plain()(rows, weights=weights)
    halved = Average(before=(Halved(),))(rows, weights=weights)
    want = (rows * np.array([[0.25], [0.5], [0.75]]) * np.array([[1], [2], [3]]) / 6).sum(axis=0)
    np.testing.assert_allclose(halved, want, rtol=1e-6)


def test_rows_of_another_number_count_alike():
    rows = np.arange(8.0, dtype=np.float32)[:, None]
    for first, left in ((Bucketing(size=2), 4), (Foundation(copies=3), 11)):
        found = mixture([(first, 0), (Halved(), 0)], updates_of_one_block(rows, None, finite=True), draws())
        alone = mixture([(first, 0)], updates_of_one_block(rows, None, finite=True), draws())
        assert len(found) == left
        assert np.array_equal(found.mixing, alone.mixing / 2)
        rows_of_first = alone.tile(slice(0, 1))
        found = mixture([(first, 0), (Nnm(), 1)], updates_of_one_block(rows, None, finite=True), draws())
        wanted = mixture([(Nnm(), 1)], updates_of_one_block(rows_of_first, None, finite=True), None)
        np.testing.assert_allclose(found.tile(slice(0, 1)), wanted.tile(slice(0, 1)), rtol=1e-6)


def draws():
    return np.random.default_rng(3)


def test_rows_of_a_mixture_have_the_weights_of_their_updates():
    rows, weights = np.eye(3, dtype=np.float32), np.array([1.0, 2.0, 5.0])
    mixed = Mixture(updates_of_one_block(rows, weights, finite=True), np.eye(3)[None])
    assert mixed.select(np.array([0, 2])).updates.weights is not None
    combined, _ = combine_finite(Average(before=(Clipping(radius=9.0),)), updates_of_one_block(rows, weights))
    np.testing.assert_allclose(combined.update, weights / 8, rtol=1e-6)
