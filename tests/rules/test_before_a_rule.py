"""Pre-aggregators before a rule: their float64 definitions, and that rules compute the same as on their rows."""

from unittest.mock import patch

import numpy as np
import pytest
from fast import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rules_against_definitions import Case, cases

from hpcps.aggregation.rule_state import RuleState
from hpcps.numerics import blocks, kernels
from hpcps.numerics.kernels import pointers
from hpcps.numerics.layout import Layout
from hpcps.numerics.mixture import Mixture
from hpcps.numerics.operations import gram, weighted_sum, whole_gram
from hpcps.numerics.updates import Destination, Updates
from hpcps.protocol.messages import Peer
from hpcps.registry import active
from hpcps.rules import (
    Arc,
    Average,
    Bucketing,
    Clipping,
    Foundation,
    Krum,
    Median,
    Nnm,
    Rule,
    TrimmedMean,
    combine_finite,
)
from hpcps.rules.context import Arrays, Context
from hpcps.rules.preaggregation import PreAggregator, mixture

LAYOUT = Layout.of([("a", (17, 31)), ("b", (17,)), ("none", (0,)), ("c", (3001,)), ("d", (1,)), ("e", (5000,))])
WHOLE = Layout.of([("w", (20,))])


def norms(rows):
    return np.sqrt((rows**2).sum(axis=1))


def nnm(stage, rows, f, exact):
    n, found = len(rows), []
    for k, row in enumerate(rows):
        distances = ((rows - row) ** 2).sum(axis=1)
        distances[k] = -1
        order = np.argsort(distances, kind="stable")
        gap = np.diff(distances[order])[n - f - 1 : n - f]
        sure = exact or not f or gap.min(initial=np.inf) > 1e-12 * (1 + (rows**2).sum())
        found.append(rows[order[: n - f]].mean(axis=0) if sure else np.full(rows.shape[1], np.nan))
    return np.array(found).reshape(rows.shape)


def arc(stage, rows, f, exact):
    n, length = len(rows), norms(rows)
    limit = sorted(length, reverse=True)[(2 * f * (n - f)) // n]
    return np.array([row * min(1.0, limit / (size or 1.0)) for row, size in zip(rows, length, strict=True)])


def clipping(stage, rows, f, exact):
    return np.array([row * min(1.0, stage.radius / (size or 1.0)) for row, size in zip(rows, norms(rows), strict=True)])


def bucketing(stage, rows, f, exact):
    order = np.random.default_rng(0).permutation(len(rows))
    buckets = [[] for _ in range(-(-len(rows) // stage.size))]
    for place, bucket in enumerate(np.arange(len(rows)) // stage.size):
        buckets[bucket].append(order[place])
    return np.array([rows[bucket].mean(axis=0) for bucket in buckets])


def foundation(stage, rows, f, exact):
    least, greatest = rows.min(axis=0), rows.max(axis=0)
    scores = np.array([min(((row - least) ** 2).sum(), ((row - greatest) ** 2).sum()) for row in rows])
    order = np.argsort(-scores, kind="stable")
    gap = scores[order[0]] - scores[order[1]] if len(rows) > 1 else np.inf
    sure = exact or gap > 1e-12 * (1 + (rows**2).sum())
    number = len(rows) // 2 if stage.copies is None else stage.copies
    copied = rows[order[0]] if sure else np.full(rows.shape[1], np.nan)
    return np.array([*rows, *[copied] * number]).reshape(len(rows) + number, rows.shape[1])


f = st.sampled_from([0, 1, 2, 0.1, 0.29, None])
per = st.sampled_from(["vector", "block"])
STAGES = {
    "nnm": (st.builds(Nnm, f=f, per=per), nnm),
    "arc": (st.builds(Arc, f=f, per=per), arc),
    "clipping": (st.builds(Clipping, radius=st.sampled_from([1e-3, 1.0, 1e3]), per=per), clipping),
    "foundation": (st.builds(Foundation, copies=st.sampled_from([None, 0, 1, 4]), per=per), foundation),
    "bucketing": (st.builds(Bucketing, size=st.integers(1, 5), f=st.just(0)), bucketing),
}


def context(reference=None):
    return Context(reference, lambda vector: float(np.abs(vector).max(initial=0)), np.random.default_rng(0), Arrays())


def rows_of(rule, updates):
    """Return the rows that the pre-aggregators make of the updates."""
    return mixture(rule.stages(len(updates)), updates, context().random)


def checked(values, layout):
    return Updates(layout, list(values), np.ones((len(values), len(layout.blocks)), np.bool_), finite=True)


def test_every_pre_aggregator_has_a_transcription() -> None:
    assert sorted(STAGES) == sorted(active().of("preaggregators"))


@pytest.mark.parametrize("kind", STAGES)
@settings(deadline=None, max_examples=examples(40), derandomize=True)
@given(data=st.data())
def test_follows_its_transcription(kind: str, data: st.DataObject) -> None:
    stage: PreAggregator = data.draw(STAGES[kind][0])
    case: Case = data.draw(cases())
    n, before = len(case.updates), case.updates.copy()
    rule = Median(before=[stage])
    combined, refused = combine_finite(rule, Updates.of(case.updates, case.layout), context())
    assert np.isfinite(combined.update).all()
    assert not refused.any()
    assert case.updates.tobytes() == before.tobytes(), "the updates were changed"
    byzantine = stage.byzantine(n, None)
    if n == 0 or not case.layout.blocks or stage.unable(n, byzantine):
        assert not combined.update.any()
        assert not combined.accepted.any()
        return
    sizes = np.abs(case.updates.astype(np.float64))
    if sizes.max(initial=0.0) > 1e15 or sizes[sizes > 0].min(initial=1.0) < 1e-15:
        return  # squares of these need more than float64 in a transcription; the results are finite, as is checked
    with patch.object(blocks, "TILE", 1), patch.object(blocks, "COLUMNS", 3):
        rows = rows_of(rule, checked(case.updates, case.layout)).tile(slice(0, case.layout.size))
    parts = [(b.offset, b.stop) for b in case.layout.blocks] if stage.scope == "block" else [(0, case.layout.size)]
    for start, stop in parts:
        given_rows = case.updates[:, start:stop].astype(np.float64)
        want = STAGES[kind][1](stage, given_rows, byzantine, case.whole)
        sure = ~np.isnan(want)
        got = rows[:, start:stop].astype(np.float64)
        room = 2**-23 * np.abs(want) + 2.0**-149 + 1e-13 * np.abs(given_rows).sum(axis=0)
        assert (np.abs(got - want) <= room)[sure].all()


def made(n: int, layout: Layout = LAYOUT) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    values = rng.standard_normal((n + 1, layout.size), dtype=np.float32)
    values[:n] *= 1 + np.arange(n, dtype=np.float32)[:, None] / 4
    return values[:n], values[n] + values[0]


KEYS = {
    "zeno": {"rho": -1.0, "epsilon": 10.0},
    "bulyan": {"f": 1},
    "krum": {"f": 2},
    "multi_krum": {"f": 2},
    "rlr": {"threshold": 2},
}
CHAINS = {
    "nnm": [Nnm(f=2)],
    "arc, nnm": [Arc(f=2), Nnm(f=2)],
    "bucketing": [Bucketing(f=1)],
    "foundation": [Foundation()],
    "nnm, foundation per block": [Nnm(f=1), Foundation(copies=2, per="block")],
    "foundation, nnm": [Foundation(), Nnm(f=2)],
    "nnm per block": [Clipping(radius=150.0), Nnm(f=2, per="block")],
}


@pytest.mark.sample(8, 64)
@pytest.mark.parametrize("path", ["numpy", "kernels"])
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("kind", [name for name, rule in active().of("rules").items() if rule.mode == "sync"])
def test_a_rule_combines_the_rows_of_a_chain(kind: str, chain: str, path: str, monkeypatch) -> None:
    """Whether it computes them or not."""
    if path == "kernels" and not kernels.installed():
        pytest.skip("numba is missing: it is optional")
    monkeypatch.setattr(kernels, "SMALLEST", {"kernels": 0, "numpy": 1 << 62}[path])
    monkeypatch.setattr(pointers, "SMALLEST_SHARED", 0)
    monkeypatch.setattr("hpcps.numerics.mixture.PART", 12_000)
    values, reference = made(15)
    alone: Rule = active().of("rules")[kind](**KEYS.get(kind, {}))
    rule = alone.model_copy(update={"before": tuple(CHAINS[chain])})
    assert not rule.refusal(15)
    made_rows = rows_of(rule, checked(values, LAYOUT))
    rows = made_rows.tile(slice(0, LAYOUT.size))
    last = alone.after(15, len(rows))
    random = np.random.default_rng(0)
    if chain == "bucketing":
        random.permutation(15)  # the generator goes on after the buckets are drawn
    wanted = last.combine(checked(rows, LAYOUT), Context(reference, context().loss, random, Arrays()))
    base = np.ones(LAYOUT.size, np.float32)
    got = [
        combine_finite(
            rule,
            Updates.of(values, LAYOUT).onto(Destination(**more)),
            Context(reference, given.loss, given.random, given.state),
        )[0]
        for more in ({}, {"threads": 2}, {"base": base, "out": base.copy()})
        for given in [context()]
    ]
    assert got[0].update.tobytes() == got[1].update.tobytes()
    assert got[2].update.tobytes() == (base + got[0].update).tobytes()
    np.testing.assert_allclose(got[0].update, wanted.update, rtol=1e-5, atol=1e-5)
    if rule.granularity != "vector" and not isinstance(rule, Average):
        assert got[0].update.tobytes() == wanted.update.tobytes()
    filled = LAYOUT.sizes > 0
    np.testing.assert_array_equal(got[0].accepted[:, filled], made_rows.entered(wanted.accepted)[:, filled])


@pytest.mark.parametrize("scaled", [False, True])
def test_kernels_and_definitions_mix_to_the_same_bits(scaled: bool, monkeypatch) -> None:
    if not kernels.installed():
        pytest.skip("numba is missing: it is optional")
    monkeypatch.setattr(pointers, "SMALLEST_SHARED", 0)
    values, _ = made(19)
    values[3, :1000] *= np.float32(1e37)
    sent = np.random.default_rng(1).random((19, len(LAYOUT.blocks))) < 0.7
    payloads = [row[LAYOUT.spread(mask)] for row, mask in zip(values, sent, strict=True)]
    for blocks_of in (1, len(LAYOUT.blocks)):
        weights = np.random.default_rng(2).standard_normal((blocks_of, 7, 19))
        weights[np.random.default_rng(3).random(weights.shape) < 0.5] = 0
        if scaled:  # as clipping does: a row is one update times a factor, or zero
            weights *= np.eye(19)[[4, 0, 3, 18, 0, 9, 9]] * np.array([1, 1, 1e3, -1, 0, 1, 1])[:, None]
        updates = Updates(LAYOUT, payloads, sent, finite=True)
        mixtures = [Mixture(updates.onto(Destination(threads=t)), weights) for t in (1, 2)]
        for columns in (slice(0, LAYOUT.size), slice(5, 5), slice(500, 600), slice(543, 5000)):
            with patch.object(kernels, "SMALLEST", 1 << 62):
                want = mixtures[0].tile(columns)
            with patch.object(kernels, "SMALLEST", 0):
                assert all(mixture.tile(columns).tobytes() == want.tobytes() for mixture in mixtures)
        some = np.array([0, 527, 544, 3560, LAYOUT.size - 1])
        assert mixtures[0].columns(some).tobytes() == mixtures[0].tile(slice(0, LAYOUT.size))[:, some].tobytes()
        assert np.array_equal(np.stack(mixtures[0].payloads), mixtures[0].tile(slice(0, LAYOUT.size)))


@pytest.mark.parametrize("blocks_of", [1, len(LAYOUT.blocks)])
def test_products_and_sums_of_rows_that_nobody_computed(blocks_of: int) -> None:
    values, extra = made(9)
    weights = np.random.default_rng(2).random((blocks_of, 5, 9))
    mixture = Mixture(checked(values, LAYOUT), weights)
    rows = checked(mixture.tile(slice(0, LAYOUT.size)), LAYOUT)
    for more in (None, extra):
        np.testing.assert_allclose(gram(mixture, more), gram(rows, more), rtol=1e-5, atol=1e-2)
        np.testing.assert_allclose(whole_gram(mixture, more), whole_gram(rows, more), rtol=1e-5, atol=1e-2)
        shares = np.random.default_rng(3).random((5 if more is None else 6, len(LAYOUT.blocks)))
        sums = [weighted_sum(each, shares, extra=more).update for each in (mixture, rows)]
        np.testing.assert_allclose(*sums, rtol=1e-5, atol=1e-5)


def test_equal_updates_stay_equal() -> None:
    """So that the first of them is chosen, wherever they are: their products are equal to the last bit."""
    values, _ = made(12)
    values[[4, 7, 11]] = values[2]
    rule = Krum(f=2, before=[Nnm(), Arc()])
    products = whole_gram(rows_of(rule, checked(values, LAYOUT)))
    assert (products[[4, 7, 11]] == products[2]).all()
    assert (products == products.T).all()


def test_arc_counts_in_whole_numbers() -> None:
    """2 * 33 * 209 / 242 is 57; in floating point 2 * 33 / 242 * 209 is less."""
    values = np.arange(1.0, 243)
    rows = np.diagonal(Arc(f=33).weights(np.outer(values, values), 33, None)) * values
    np.testing.assert_allclose(rows, np.minimum(values, 242 - 57))


def test_buckets_are_drawn_again_and_attackers_stay_as_many() -> None:
    random = np.random.default_rng(5)
    drawn = [Bucketing(size=3).weights(np.zeros((8, 8)), 0, random) for _ in range(2)]
    assert not np.array_equal(*drawn)
    assert sorted((drawn[0] > 0).sum(axis=1)) == [2, 3, 3]
    assert ((drawn[0] > 0).sum(axis=0) == 1).all()
    np.testing.assert_allclose(drawn[0].sum(axis=1), 1)
    # 16 updates of which 3 are Byzantine, in 8 buckets: the rule still expects 3.
    values, _ = made(16, WHOLE)
    rule = TrimmedMean(f=0.2, before=[Bucketing()])
    weights = Bucketing().weights(np.zeros((16, 16)), 3, np.random.default_rng(0))
    rows = (weights @ values.astype(np.float64)).astype(np.float32)
    combined, _ = combine_finite(rule, Updates.of(values, WHOLE), context())
    assert combined.update.tobytes() == TrimmedMean(f=3)(rows).tobytes()
    assert "f = 3" in TrimmedMean(f=0.2, before=[Bucketing(size=3)]).refusal(16)


def test_a_checkpoint_keeps_the_generator_of_the_buckets() -> None:
    rule = Median(before=[Bucketing(f=0)])
    values, _ = made(8, WHOLE)

    def drawn(kept: RuleState) -> bytes:
        combined, _ = combine_finite(rule, Updates.of(values, WHOLE), Context(random=kept.random, state=kept.arrays))
        return combined.update.tobytes()

    kept, again = (RuleState(rule, 1, Peer("server", 0)) for _ in range(2))
    first, saved = drawn(kept), kept.state()
    second = drawn(kept)
    assert first != second
    again.restore(saved)
    assert drawn(again) == second


def test_what_cannot_be() -> None:
    assert TrimmedMean(f=3, before=[Bucketing(size=3)]).refusal(16).startswith("bucketing needs more than 2 f")
    assert Krum(f=2, before=[Bucketing(size=2)]).refusal(13) == ""
    left = Krum(f=2, before=[Bucketing(size=2)]).refusal(12)
    assert left == "krum needs at least 2 f + 3 updates, and f = 2 of 6 rows that are left of 12 updates"
    assert Average(before=[Nnm(f=2)]).refusal(5) == ""
    assert Average(before=[Nnm(f=2)]).refusal(4) == "nnm needs at least 2 f + 1 updates, and f = 2 of 4"
    assert Average(before=[Arc(f=2)]).refusal(4) == "arc needs at least 2 f + 1 updates, and f = 2 of 4"
    with pytest.raises(ValueError, match="nnm needs at least 2 f \\+ 1 updates"):
        Average(before=[Nnm(f=2)])(np.ones((4, 3)))


def test_the_rule_says_what_all_see_and_need() -> None:
    assert Median(before=[Nnm()]).scope == "vector"
    assert Median(before=[Nnm(per="block"), Clipping(per="block")]).scope == "block"
    assert Krum(per="block", before=[Nnm(per="block")]).scope == "block"
    assert Krum(per="block", before=[Nnm()]).scope == "vector"
    assert Median(before=[Bucketing()]).scope == "vector"
    assert Median(before=[Bucketing()]).requires == {"random"}
    assert Nnm().byzantine(16, Krum(f=5).tolerated(16)) == 5
    assert Nnm().byzantine(16, Median().tolerated(16)) == 3
    assert Nnm(f=1).byzantine(16, 5) == 1


def test_a_row_that_is_not_finite_never_gets_into_a_chain() -> None:
    values, _ = made(6, WHOLE)
    values[1, 3], values[4, 19] = np.nan, np.inf
    for chain in CHAINS.values():
        for rule in (Median(before=chain), Krum(f=1, before=chain)):
            combined, refused = combine_finite(rule, Updates.of(values, WHOLE), context())
            assert np.isfinite(combined.update).all()
            assert refused[:, 0].tolist() == [False, True, False, False, True, False]


def test_many_updates() -> None:
    values, _ = made(256, WHOLE)
    for rule in (Krum(before=[Arc(), Nnm()]), Median(before=[Bucketing(), Nnm()])):
        combined, _ = combine_finite(rule, Updates.of(values, WHOLE), context())
        assert np.isfinite(combined.update).all()
        assert combined.accepted.any()
