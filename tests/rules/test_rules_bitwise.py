"""Rules give the same bits wherever their inputs lie in memory, and however the vector is cut."""

from itertools import pairwise
from unittest.mock import patch

import numpy as np
import pytest

from hpcps.numerics import blocks
from hpcps.numerics.definitions import ascending, comparators
from hpcps.numerics.layout import Layout
from hpcps.numerics.updates import Updates
from hpcps.registry import active
from hpcps.rules import Rule
from hpcps.rules.context import Arrays, Context

LAYOUT = Layout.of([("a", (17, 31)), ("b", (17,)), ("none", (0,)), ("c", (3001,)), ("d", (1,)), ("e", (5000,))])
KEYS = {"zeno": {"rho": 0.0, "epsilon": 1.0}, "bulyan": {"f": 1}}
RULES = [rule(**KEYS.get(kind, {})) for kind, rule in active().of("rules").items() if rule.mode == "sync"]
every_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)


def updates(n: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(n)
    values = rng.standard_normal((n + 1, LAYOUT.size), dtype=np.float32)
    values *= 10.0 ** rng.integers(-6, 7, values.shape)
    values[rng.random(values.shape) < 0.1] = -0.0
    values[rng.random(values.shape) < 0.1] = 0.0
    return values[:n], values[0] + np.float32(0.5) * values[n]


def given(reference: np.ndarray) -> Context:
    """A fresh context with everything that a rule may need."""
    return Context(reference, lambda vector: float(np.abs(vector).max()), np.random.default_rng(1), Arrays())


def bits(array: np.ndarray) -> bytes:
    return array.tobytes()


def displaced(array: np.ndarray, offset: int, gap: int) -> np.ndarray:
    """Copy an array to `offset` bytes past a multiple of 64, with `gap` unused elements between rows."""
    rows = np.atleast_2d(array)
    raw = np.full(rows.shape[0] * (rows.shape[1] + gap) * 4 + 128, 0xFF, dtype=np.uint8)
    raw = raw[(offset - raw.ctypes.data) % 64 :]
    padded = raw[: rows.shape[0] * (rows.shape[1] + gap) * 4].view(np.float32)
    copy = padded.reshape(rows.shape[0], -1)[:, : rows.shape[1]]
    copy[:] = rows
    return copy.reshape(array.shape) if array.ndim == 1 else copy


@every_rule
def test_alignment_leaves_no_trace(rule: Rule) -> None:
    values, reference = updates(9)
    want = rule.combine(Updates.of(values, LAYOUT), given(reference))
    for offset, gap in [(0, 0), (4, 0), (8, 1), (12, 3), (36, 5), (60, 7), (1, 0), (2, 1), (63, 1)]:
        moved = Updates.of(displaced(values, offset, gap), LAYOUT)
        got = rule.combine(moved, given(displaced(reference, (offset * 5 + 4) % 64, 0)))
        assert bits(got.update) == bits(want.update)
        assert bits(got.accepted) == bits(want.accepted)


def test_the_sums_behind_zeno_are_of_the_order_that_is_laid_down() -> None:
    rng = np.random.default_rng(0)
    for size in (1, 15, 16, 17, 2047, 2048, 2049, 5001):
        values = rng.standard_normal((3, size))
        want = []
        for row in values.tolist():
            sums = []
            for start in range(0, size, 2048):
                lanes = [0.0] * 16
                for k, value in enumerate(row[start : start + 2048]):
                    lanes[k % 16] += value
                while len(lanes) > 1:
                    half = len(lanes) // 2
                    lanes = [a + b for a, b in zip(lanes[:half], lanes[half:], strict=True)]
                sums.append(lanes[0])
            want.append(sums)
        raw = np.empty(values.size + 8)
        for offset in range(8):
            moved = raw[offset : offset + values.size].reshape(values.shape)
            moved[:] = values
            assert blocks.segment_sums(moved).tolist() == want
        assert blocks.segment_sums(values[:1]).tolist() == want[:1]


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.granularity != "vector"], ids=lambda rule: rule.kind)
@pytest.mark.parametrize("n", [1, 3, 5, 16])
def test_parts_of_what_a_rule_sees_combine_to_the_whole(rule: Rule, n: int) -> None:
    values, reference = updates(n)
    whole = rule.combine(Updates.of(values, LAYOUT), given(reference)).update
    cuts = [*LAYOUT.bounds(3, whole=True), *pairwise(LAYOUT.offsets.tolist())]
    if rule.granularity == "coordinate":
        cuts += [*LAYOUT.bounds(3), (5, 6), (100, 103), (LAYOUT.size - 1, LAYOUT.size), (8, 8)]
    for start, stop in cuts:
        updates_of_part = Updates.of(values[:, start:stop], LAYOUT.restrict(start, stop))
        part = rule.combine(updates_of_part, given(reference[start:stop])).update
        assert bits(part) == bits(whole[start:stop])


@every_rule
def test_tiles_leave_no_trace(rule: Rule) -> None:
    values, reference = updates(7)
    want = rule.combine(Updates.of(values, LAYOUT), given(reference))
    assert want.accepted.any()
    for width in (16, 333, 100_000):
        with patch.object(blocks, "TILE", 1), patch.object(blocks, "COLUMNS", width):
            got = rule.combine(Updates.of(values, LAYOUT), given(reference))
        assert bits(got.update) == bits(want.update)
        assert bits(got.accepted) == bits(want.accepted)


@pytest.mark.parametrize("n", range(18))
def test_the_network_sorts_every_pattern_of_zeros_and_ones(n: int) -> None:
    # A network that sorts all sequences of zeros and ones sorts everything (Knuth 5.3.4, theorem Z).
    patterns = (np.arange(2**n)[None, :] >> np.arange(n)[:, None] & 1).astype(np.float32)
    rows = ascending(patterns)
    ones = patterns.sum(axis=0)
    for row, values in enumerate(rows):
        assert np.array_equal(values, ones >= n - row)


def test_the_network_of_many_rows() -> None:
    values = np.random.default_rng(1).standard_normal((100, 300), dtype=np.float32)
    assert np.array_equal(np.stack(ascending(values)), np.sort(values, axis=0))
    assert len(comparators(16)) == 63
