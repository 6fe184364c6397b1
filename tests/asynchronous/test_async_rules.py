"""Each asynchronous rule against a plain transcription of its formula, and what matters about it in particular."""

from fractions import Fraction
from math import fsum, sqrt
from typing import Annotated, Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from hpcps.numerics import blocks
from hpcps.numerics.layout import Layout
from hpcps.registry import OneOf
from hpcps.rules import AsyncRule, ZenoPlusPlus
from hpcps.rules.context import AsyncContext

EXTREMES = np.array([0, -0.0, 1e-45, -1e-45, 1e-20, 1, -1, 3, 1e20, -1e38, 3.4028235e38], np.float32)


@st.composite
def cases(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray, np.ndarray, Layout]:
    sizes = draw(st.lists(st.integers(0, 9), max_size=6))
    layout = Layout.of([(f"b{i}", (size,)) for i, size in enumerate(sizes)])
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["random", "tied", "extreme", "alike", "opposite", "orthogonal"]))
    u, v = rng.standard_normal((2, layout.size)) * 10.0 ** rng.integers(-3, 4, (2, 1))
    if kind == "tied":
        u, v = rng.integers(-2, 3, (2, layout.size))
    elif kind == "extreme":
        u, v = rng.choice(EXTREMES, (2, layout.size))
    elif kind in ("alike", "opposite"):
        u = (v + 0.3 * u) * (1 if kind == "alike" else -1)
    elif kind == "orthogonal":
        u[::2], v[1::2] = 0, 0
    sent = rng.random(len(sizes)) < 0.8
    u = np.where(layout.spread(sent), u, 0)
    return u.astype(np.float32), v.astype(np.float32), sent, layout


@pytest.mark.thorough
@settings(deadline=None, max_examples=400, derandomize=True)
@given(cases(), st.sampled_from([-0.02, 0.0, -0.5, -1.0]), st.sampled_from([1, 3, 1000]))
def test_zeno_plus_plus_follows_its_definition(case: Any, threshold: float, width: int) -> None:
    u, v, sent, layout = case
    got = u.copy()
    with patch.object(blocks, "TILE", 1), patch.object(blocks, "COLUMNS", width):
        judged = ZenoPlusPlus(threshold=threshold).decide(got, AsyncContext(layout=layout, sent=sent, reference=v))
    for index, block in enumerate(layout.blocks):
        part = slice(block.offset, block.stop)
        x, y = ([float(value) for value in vector[part]] for vector in (u, v))
        theirs, own = fsum(a * a for a in x), fsum(a * a for a in y)
        assert judged.applied[index] == (sent[index] and theirs > 0 and own > 0)
        if not judged.applied[index]:
            assert not judged.negated[index]
            continue
        cosine = fsum(a * b for a, b in zip(x, y, strict=True)) / (sqrt(theirs) * sqrt(own))
        doubt = 1e-13 * len(x)
        if abs(cosine - threshold) > doubt:
            assert judged.negated[index] == (cosine < threshold)
        factor = min(1.0, sqrt(own) / sqrt(theirs)) * (cosine if judged.negated[index] else 1.0)
        for a, b in zip(x, got[part], strict=True):
            assert abs(a * factor - float(b)) <= 1e-6 * abs(a * factor) + doubt * abs(a) + 2**-149


@pytest.mark.parametrize(
    ("staleness", "weights"),
    [
        ({"kind": "constant"}, [1, 1, 1, 1]),
        ({"kind": "polynomial", "a": 0.5}, [1, 2**-0.5, 3**-0.5, 11**-0.5]),
        ({"kind": "hinge", "a": 2.0, "b": 1.0}, [1, 1, Fraction(1, 3), Fraction(1, 19)]),
    ],
)
def test_fed_async_weighs_staleness(staleness: dict[str, Any], weights: list[float]) -> None:
    rule = TypeAdapter(Annotated[AsyncRule, OneOf("rules")]).validate_python(
        {"kind": "fed_async", "staleness": staleness}
    )
    assert [rule.weight(t) for t in (0, 1, 2, 10)] == pytest.approx([float(w) for w in weights], rel=1e-15)


LAYOUT = Layout.of([("a", (3,)), ("b", (2,))])


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf, -np.inf])
def test_zeno_plus_plus_applies_nothing_against_a_zero_or_non_finite_reference(bad: float) -> None:
    v = np.array([1, bad, 0, 1, 1] if bad else [0, 0, 0, 1, 1], np.float32)
    judged = ZenoPlusPlus().decide(
        np.ones(5, np.float32), AsyncContext(layout=LAYOUT, sent=np.ones(2, np.bool_), reference=v)
    )
    assert judged.applied.tolist() == [False, True]


def test_alignment_and_tiles_leave_no_trace() -> None:
    rng = np.random.default_rng(3)
    layout = Layout.of([("a", (17, 31)), ("b", (17,)), ("none", (0,)), ("c", (3001,)), ("d", (5000,))])
    u, v = rng.standard_normal((2, layout.size), dtype=np.float32)
    sent = np.ones(len(layout.blocks), np.bool_)
    want = u.copy()
    ZenoPlusPlus().decide(want, AsyncContext(layout=layout, sent=sent, reference=v))
    for offset in (0, 4, 8, 12, 36, 60):
        raw = np.zeros(2 * layout.size * 4 + 256, np.uint8)
        raw = raw[(offset - raw.ctypes.data) % 64 :]
        moved = raw[: layout.size * 4].view(np.float32)
        moved[:] = u
        other = np.concatenate([np.zeros(offset // 4 + 1, np.float32), v])[offset // 4 + 1 :]
        with patch.object(blocks, "COLUMNS", 100 + 77 * offset), patch.object(blocks, "TILE", 1):
            ZenoPlusPlus().decide(moved, AsyncContext(layout=layout, sent=sent, reference=other))
        assert moved.tobytes() == want.tobytes()
