"""`skipped = "left_out"`: a block counts only in the updates that have it."""

import numpy as np
import pytest
from fast import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcps.numerics.layout import Layout
from hpcps.numerics.updates import Destination, Updates
from hpcps.registry import active
from hpcps.rules import Krum, Median, Nnm, Rule, TrimmedMean, combine_finite
from hpcps.rules.context import Context

KEYS = {"zeno": {"rho": -1.0, "epsilon": 10.0}}


def rules() -> dict[str, Rule]:
    found = {}
    for kind, rule in active().of("rules").items():
        if rule.mode == "async":
            continue
        if rule.granularity != "vector":
            found[kind] = rule(skipped="left_out", **KEYS.get(kind, {}))
        elif "per" in rule.model_fields and rule(per="block").scope == "block":
            found[f"{kind} per block"] = rule(per="block", skipped="left_out")
    found["nnm"] = Median(skipped="left_out", before=[Nnm(per="block")])
    return found


RULES = rules()


@pytest.mark.parametrize("name", RULES)
@settings(deadline=None, max_examples=examples(25), derandomize=True)
@given(n=st.integers(0, 9), rate=st.sampled_from([0.0, 0.3, 0.7]), seed=st.integers(0, 2**32 - 1))
def test_each_block_is_combined_from_the_updates_that_have_it(name: str, n: int, rate: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    rule = RULES[name]
    layout = Layout.of([(f"b{k}", (int(size),)) for k, size in enumerate(rng.integers(0, 9, 6))])
    rows = rng.standard_normal((n, layout.size), dtype=np.float32)
    reference, base = (rng.standard_normal(layout.size, dtype=np.float32) for _ in range(2))
    sent = rng.random((n, 6)) >= rate
    payloads = [row[layout.spread(mask)] for row, mask in zip(rows, sent, strict=True)]
    bad = sent & (rng.random((n, 6)) < 0.1) & (layout.sizes > 0)
    updates = Updates(layout, payloads, sent)
    for row, block in np.argwhere(bad):
        payloads[row][int(updates.starts[row, block])] = np.nan
    out = base.copy()
    combined, refused = combine_finite(rule, updates.onto(Destination(out, out)), Context(reference))
    assert np.array_equal(refused, bad)
    for index, block in enumerate(layout.blocks):
        if not block.size:
            continue
        part, have = slice(block.offset, block.stop), np.flatnonzero(sent[:, index] & ~bad[:, index])
        inner = Layout.of([("only", (block.size,))])
        alone = rule.model_copy(update={"skipped": "zero"})
        want, _ = combine_finite(alone, Updates.of(rows[have][:, part], inner), Context(reference[part]))
        np.testing.assert_array_equal(combined.update[part], base[part] + want.update)
        assert np.array_equal(combined.accepted[have, index], want.accepted[:, 0])
        assert not np.delete(combined.accepted[:, index], have).any()
        if not len(have):
            assert not want.update.any()


def test_it_differs_from_zero() -> None:
    layout = Layout.of([("a", (1,)), ("b", (1,))])
    payloads = [np.array(row, np.float32) for row in ([1, 4], [3], [5, 4])]
    updates = Updates(layout, payloads, np.array([[True, True], [True, False], [True, True]]))
    assert combine_finite(Median(), updates)[0].update.tolist() == [3, 4]
    assert combine_finite(TrimmedMean(f=0), updates)[0].update.tolist() == [3, np.float32(8 / 3)]
    left_out = TrimmedMean(f=0, skipped="left_out")
    assert combine_finite(left_out, updates)[0].update.tolist() == [3, 4]
    assert combine_finite(left_out, updates)[0].accepted.tolist() == [[True, True], [True, False], [True, True]]
    # With f = 1, two updates are too few for the second block.
    few, _ = combine_finite(TrimmedMean(f=1, skipped="left_out"), updates)
    assert few.update.tolist() == [3, 0]
    assert few.accepted.tolist() == [[True, False]] * 3


def test_it_is_for_rules_per_coordinate_or_block() -> None:
    for rule in (Krum(f=0, skipped="left_out"), Median(skipped="left_out", before=[Nnm()])):
        with pytest.raises(ValueError, match="sees whole updates, so blocks cannot be left out"):
            rule(np.ones((5, 2)))
