"""Blocks that are not finite become zero and are reported; everything else is left as it is."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcps import blocks
from hpcps.layout import Layout
from hpcps.rules import Average, Phocas, TrimmedMean, Zeno, screen


@settings(deadline=None, max_examples=150, derandomize=True)
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
    updates = rng.choice(np.array([0.0, -0.0, 1.5, 1e-45, 3.4e38, -3.4e38], np.float32), (n, layout.size))
    bad = rng.random(updates.shape) < rate
    updates[bad] = rng.choice(np.array([np.nan, np.inf, -np.inf], np.float32), int(bad.sum()))
    sent = rng.random((n, len(sizes))) < 0.7
    want, refused = updates.copy(), np.zeros(sent.shape, dtype=np.bool_)
    for row in range(n):
        for index, block in enumerate(layout.blocks):
            part = want[row, block.offset : block.stop]
            if not all(np.isfinite(x) for x in part):
                part[:] = 0.0
                refused[row, index] = sent[row, index]
    with patch.object(blocks, "TILE", 1), patch.object(blocks, "COLUMNS", width):
        got = screen(updates, sent, layout)
    assert got.dtype == np.bool_
    assert np.array_equal(got, refused)
    assert np.array_equal(updates.view(np.int32), want.view(np.int32))


def test_no_rule_lets_a_screened_block_reach_the_model() -> None:
    layout = Layout.of([("w", (2, 2)), ("b", (2,))])
    updates = np.ones((5, layout.size), dtype=np.float32)
    updates[0, 0], updates[1, 0] = np.inf, -np.inf  # opposite infinities, whose mean is a NaN
    updates[2, 5] = np.nan
    refused = screen(updates, np.ones((5, 2), np.bool_), layout)
    assert np.argwhere(refused).tolist() == [[0, 0], [1, 0], [2, 1]]
    reference = np.ones(layout.size, np.float32)
    for rule in (Average(), TrimmedMean(), Phocas(), Zeno()):
        update = rule.combine(updates, layout, reference).update
        assert np.isfinite(update).all()
    assert np.allclose(Average().combine(updates, layout).update, [0.6] * 4 + [0.8] * 2)
