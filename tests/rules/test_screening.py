"""Blocks that are not finite count as skipped and are reported; everything else is left as it is."""

from unittest.mock import patch

import numpy as np
import pytest
from fast import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcps.numerics import blocks
from hpcps.numerics.layout import Layout
from hpcps.numerics.updates import Destination, Updates
from hpcps.numerics.vectors import pack
from hpcps.rules import Average, Median, NotFiniteError, Phocas, Rule, TrimmedMean, Zeno, combine_finite, screen
from hpcps.rules.context import Context

RULES = [Average(), TrimmedMean(), Median(), Phocas(), Zeno(rho=0.0, epsilon=1.0)]


@settings(deadline=None, max_examples=examples(80), derandomize=True)
@given(
    n=st.integers(0, 6),
    sizes=st.lists(st.integers(0, 9), max_size=6),
    rate=st.sampled_from([0.0, 0.02, 0.3]),
    width=st.sampled_from([1, 4, 1000]),
    seed=st.integers(0, 2**32 - 1),
)
def test_screens_as_defined(n: int, sizes: list[int], rate: float, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    layout = Layout.of([(f"b{i}", (size,)) for i, size in enumerate(sizes)])
    whole = rng.choice(np.array([0.0, -0.0, 1.5, 1e-45, 3.4e38, -3.4e38], np.float32), (n, layout.size))
    bad = rng.random(whole.shape) < rate
    whole[bad] = rng.choice(np.array([np.nan, np.inf, -np.inf], np.float32), int(bad.sum()))
    sent = rng.random((n, len(sizes))) < 0.7
    want, refused = np.zeros_like(whole), np.zeros(sent.shape, dtype=np.bool_)
    for row in range(n):
        for index, block in enumerate(layout.blocks):
            part = slice(block.offset, block.stop)
            if sent[row, index]:
                refused[row, index] = not all(np.isfinite(x) for x in whole[row, part])
                if not refused[row, index]:
                    want[row, part] = whole[row, part]
    payloads = [pack(layout, row, mask, np.empty_like(row)) for row, mask in zip(whole, sent, strict=True)]
    before = [payload.tobytes() for payload in payloads]
    updates = Updates(layout, payloads, sent)
    reference = rng.standard_normal(layout.size, dtype=np.float32)
    base = rng.standard_normal(layout.size, dtype=np.float32)
    with patch.object(blocks, "TILE", 1), patch.object(blocks, "COLUMNS", width):
        got = screen(updates)
        assert got.dtype == np.bool_
        assert np.array_equal(got, refused)
        kept = updates.without(got)
        assert np.array_equal(kept.tile(slice(0, layout.size)).view(np.int32), want.view(np.int32))
        start, stop = sorted(rng.integers(0, layout.size + 1, 2))
        assert np.array_equal(kept.tile(slice(start, stop)).view(np.int32), want[:, start:stop].view(np.int32))
        for rule in RULES:
            plain, _ = combine_finite(rule, Updates.of(want, layout), Context(reference))
            for out in (None, np.empty_like(base), base.copy()):
                into = {"base": base if out is None or out.tobytes() != base.tobytes() else out, "out": out}
                combined, found = combine_finite(rule, updates.onto(Destination(**into)), Context(reference))
                assert np.array_equal(found, refused)
                assert np.array_equal(combined.accepted, plain.accepted)
                assert combined.update.tobytes() == (base + plain.update).tobytes()
                assert out is None or combined.update is out
    assert [payload.tobytes() for payload in payloads] == before, "another process's memory was written to"


@pytest.mark.parametrize("rule", [*RULES, TrimmedMean(trim=0.0)], ids=lambda rule: rule.kind)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_rule_that_checks_finds_what_nobody_knew_of(rule: Rule, bad: float, n: int) -> None:
    layout = Layout.of([("w", (40_000,)), ("b", (3,))])
    updates = np.ones((n, layout.size), np.float32)
    assert rule.checks
    for position in (0, 39_999, 40_002):
        updates[n - 1, position] = bad
        with pytest.raises(NotFiniteError), np.errstate(invalid="ignore"):
            rule.combine(Updates.of(updates, layout), Context(np.ones(layout.size, np.float32)))
        updates[n - 1, position] = 1.0
    rule.combine(Updates.of(updates, layout), Context(np.ones(layout.size, np.float32)))


def test_says_whether_the_sum_with_the_base_is_finite() -> None:
    layout = Layout.of([("w", (3,))])
    top = np.full(3, np.finfo(np.float32).max, np.float32)
    updates = Updates.of(top[None, :], layout)
    for base, finite in ((np.zeros(3, np.float32), True), (top, False), (np.array([0, np.nan, 0], np.float32), False)):
        with np.errstate(over="ignore"):
            combined, refused = combine_finite(Average(), updates.onto(Destination(base)))
        assert combined.finite is finite
        assert not refused.any()
