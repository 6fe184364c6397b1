"""Every rule against a plain transcription of its formula, coordinate by coordinate, in float64 or exactly."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import fsum
from statistics import median, median_low
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import transcriptions
from fast import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from hpcps.numerics import blocks
from hpcps.numerics.layout import Layout
from hpcps.numerics.updates import Updates
from hpcps.registry import active
from hpcps.rules import Combined, Rule, combine_finite
from hpcps.rules.context import Arrays, Context

EXTREMES = np.array(
    [
        0.0,
        -0.0,
        1e-45,
        -1e-45,
        1e-38,
        -1e-38,
        1e-20,
        1.0,
        -1.0,
        3.0,
        1e20,
        -1e20,
        1e38,
        -1e38,
        3.4028235e38,
        -3.4028235e38,
    ],
    dtype=np.float32,
)


@dataclass(frozen=True)
class Case:
    updates: Any
    layout: Layout
    reference: Any
    whole: bool  # small whole numbers: every sum is exact in float64, so comparisons must be exact too


@st.composite
def cases(draw: st.DrawFn) -> Case:
    n = draw(st.integers(0, 17))
    sizes = draw(st.lists(st.integers(0, 9), max_size=6))
    layout = Layout.of([(f"b{i}", (size,)) for i, size in enumerate(sizes)])
    kind = draw(st.sampled_from(["random", "tied", "constant", "extreme", "like the reference", "sparse"]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    shape = (n + 1, layout.size)
    if kind == "tied":
        values = rng.integers(-2, 3, shape)
    elif kind == "constant":
        values = np.full(shape, rng.integers(-3, 4))
    elif kind == "extreme":
        values = rng.choice(EXTREMES, shape)
    else:
        values = rng.standard_normal(shape) * 10.0 ** rng.integers(-3, 4)
        if kind == "like the reference":
            values = values[-1] + 0.4 * values
        if kind == "sparse":
            for row in values[:-1]:
                row[layout.spread(rng.random(len(sizes)) < 0.5)] = 0.0
    values = values.astype(np.float32)
    return Case(values[:-1], layout, values[-1], kind in ("tied", "constant"))


def close(got: Any, low: float, high: float, terms: list[float]) -> bool:
    """Whether got lies in [low, high], but for its own rounding and that of a float64 sum of the terms."""
    slack = 3e-15 * sum(map(abs, terms))
    low, high = low - slack, high + slack
    below, above = (1.001 * max(abs(x) * 2**-24, 2**-150) for x in (low, high))
    return low - below <= float(got) <= high + above


def columns(case: Case) -> list[list[float]]:
    return [[float(x) for x in column] for column in case.updates.T]


def dropped(rule: Any, n: int) -> Fraction:
    return Fraction(str(rule.trim)) * n


def check_average(rule: Any, case: Case, combined: Combined) -> None:
    assert combined.accepted.all()
    for got, values in zip(combined.update, columns(case), strict=True):
        want = fsum(values) / len(values) if values else 0.0
        assert close(got, want, want, values)


def enough(rule: Any, n: int) -> bool:
    return n > (2 if rule.f is None else 2 * transcriptions.f_of(rule, n))


def check_trimmed_mean(rule: Any, case: Case, combined: Combined) -> None:
    n = len(case.updates)
    assert (combined.accepted == enough(rule, n)).all()
    for got, values in zip(combined.update, columns(case), strict=True):
        if not enough(rule, n):
            assert got == 0.0
            continue
        b = int(min((n - 2) // 2, dropped(rule, n))) if rule.f is None else transcriptions.f_of(rule, n)
        rest = sorted(values)[b : n - b]
        want = fsum(rest) / len(rest)
        assert close(got, want, want, rest)


def check_median(rule: Any, case: Case, combined: Combined) -> None:
    assert combined.accepted.all()
    for got, values in zip(combined.update, columns(case), strict=True):
        middle = median_low if rule.middle == "lower" else median
        want = middle(values) if values else 0.0
        assert close(got, want, want, values)


def check_phocas(rule: Any, case: Case, combined: Combined) -> None:
    n = len(case.updates)
    assert (combined.accepted == enough(rule, n)).all()
    for got, values in zip(combined.update, columns(case), strict=True):
        if not enough(rule, n):
            assert got == 0.0
            continue
        b = int(max(1, dropped(rule, n))) if rule.f is None else transcriptions.f_of(rule, n)
        exact = sorted(map(Fraction, values))
        centre = sum(exact[b : n - b]) / (n - 2 * b)
        distances = sorted(abs(x - centre) for x in exact)
        # Of values that only rounding tells apart from the last one kept, any may be kept.
        cut, slack = distances[n - b - 1], Fraction(1, 10**13) * sum(map(abs, exact))
        sure = [x for x in exact if abs(x - centre) < cut - slack]
        tied = [x for x in exact if abs(abs(x - centre) - cut) <= slack]
        need = n - b - len(sure)
        low, high = (float((sum(sure) + sum(some)) / (n - b)) for some in (tied[:need], tied[len(tied) - need :]))
        assert close(got, low, high, values)


def check_zeno(rule: Any, case: Case, combined: Combined) -> None:
    exact = case.whole and float(rule.rho * 8).is_integer() and float(rule.epsilon * 8).is_integer()
    for index, block in enumerate(case.layout.blocks):
        part = slice(block.offset, block.stop)
        v = [float(x) for x in case.reference[part]]
        us = [[float(x) for x in update[part]] for update in case.updates]
        norm = fsum(x * x for x in v)
        for row, u in enumerate(us):
            inner, least = fsum(x * y for x, y in zip(u, v, strict=True)), rule.rho * norm
            square, most = fsum(x * x for x in u), (1 + rule.epsilon) * norm
            doubt = 0.0 if exact else 1e-13
            size = fsum(abs(x * y) for x, y in zip(u, v, strict=True))
            sure = abs(inner - least) >= doubt * (size + abs(least))
            if sure and abs(square - most) >= doubt * (square + most):
                assert combined.accepted[row, index] == (inner > least and square < most)
        kept = [u for row, u in enumerate(us) if combined.accepted[row, index]]
        for k, got in enumerate(combined.update[part]):
            values = [u[k] for u in kept]
            want = fsum(values) / len(values) if values else 0.0
            assert close(got, want, want, values)


def check_lasa(rule: Any, case: Case, combined: Combined) -> None:
    n, sizes = len(case.updates), np.abs(case.updates.astype(np.float64))
    if n == 0 or sizes.max(initial=0.0) > 1e15 or sizes[sizes > 0].min(initial=1.0) < 1e-15:
        return  # as below
    parts = [slice(block.offset, block.stop) for block in case.layout.blocks]
    measures, scaled = transcriptions.lasa_measures(rule, case.updates.astype(np.float64), parts)
    for part, each, accepted in zip(parts, measures, combined.accepted.T, strict=True):
        ordinary, sure = transcriptions.lasa_ordinary(rule, each)
        if sure:
            assert np.array_equal(accepted, ordinary)
        want = scaled[accepted, part].mean(axis=0)
        transcriptions.near(combined.update[part].astype(np.float64), want, scaled[:, part], 1e-12)


def check_transcription(rule: Any, case: Case, combined: Combined) -> None:
    n, check = len(case.updates), transcriptions.TRANSCRIPTIONS[rule.kind]
    own = case.reference.astype(np.float64)
    if n == 0 or rule.unable(n):
        assert not combined.update.any()
        assert n == 0 or rule.granularity == "coordinate" or not combined.accepted.any()
        return
    sizes = np.abs(np.vstack((case.updates, case.reference)).astype(np.float64))
    if sizes.max(initial=0.0) > 1e15 or sizes[sizes > 0].min(initial=1.0) < 1e-15:
        return  # squares of these need more than float64 in a transcription; their results are finite, as is checked
    parts = [slice(0, case.layout.size)]
    if rule.scope == "block" and rule.granularity == "vector":
        parts = [slice(block.offset, block.stop) for block in case.layout.blocks]
    for index, part in enumerate(parts):
        rows = case.updates[:, part].astype(np.float64)
        accepted = combined.accepted[:, index] if len(case.layout.blocks) else np.ones(n, np.bool_)
        if len(case.layout.blocks):
            check(rule, rows, own[part], accepted, combined.update[part].astype(np.float64), case.whole)


trims = st.sampled_from([0.0, 0.05, 0.1, 0.2, 0.2, 0.25, 0.3, 0.4, 0.49])
tolerances = st.fixed_dictionaries({"f": st.sampled_from([0, 1, 2, 3, 0.0, 0.1, 0.2, 0.29, 0.4])})
REFERENCES: dict[str, tuple[st.SearchStrategy[dict[str, float]], Callable[[Any, Case, Combined], None]]] = {
    "average": (st.just({}), check_average),
    "mean": (st.just({}), check_average),
    "trimmed_mean": (st.fixed_dictionaries({"trim": trims}) | tolerances, check_trimmed_mean),
    "median": (st.fixed_dictionaries({"middle": st.sampled_from(["mean", "lower"])}), check_median),
    "phocas": (st.fixed_dictionaries({"trim": trims}) | tolerances, check_phocas),
    "zeno": (
        st.fixed_dictionaries(
            {
                "rho": st.sampled_from([-10.0, -0.5, -0.1, -0.001, 0.0, 0.001, 0.125, 1.0]),
                "epsilon": st.sampled_from([-0.5, 0.0, 0.5, 0.6, 10.0]),
            }
        ),
        check_zeno,
    ),
}
bounds = st.sampled_from([0.1, 1.0, 2.0])
REFERENCES["lasa"] = (
    st.fixed_dictionaries({"sparsity": st.sampled_from([0.0, 0.3, 0.9]), "norm_bound": bounds, "sign_bound": bounds}),
    check_lasa,
)
f = st.sampled_from([0, 1, 2, 3, 0.0, 0.1, 0.2, 0.29, 0.4])
per = st.sampled_from(["vector", "block"])
few = st.sampled_from([0, 1, 2, 0.1, 0.2])
KEYS: dict[str, dict[str, st.SearchStrategy[Any]]] = {
    "krum": {"f": f, "per": per, "neighbours": st.sampled_from(["n-f-2", "n-f-1"])},
    "multi_krum": {"f": f, "per": per, "m": st.sampled_from([None, 1, 2, 5])},
    "bulyan": {"f": few},
    "mda": {"f": few, "per": per},
    "smea": {"f": few, "per": per},
    "cge": {"f": f, "per": per},
    "monna": {"f": f, "per": per},
    "aksel": {"f": f, "per": per, "keep": st.sampled_from(["half", "n-f"])},
    "meamed": {"f": f, "middle": st.sampled_from(["mean", "lower"])},
    "geometric_median": {
        "per": per,
        "start": st.sampled_from(["zero", "mean", "median", "lower_median"]),
        "iterations": st.sampled_from([1, 2, 5, 8, 20]),
        "tolerance": st.sampled_from([0.0, 1e-7]),
    },
    "norm_clipping": {"per": per, "radius": st.sampled_from([1e-3, 1.0, 1e3])},
    "centered_clipping": {"radius": st.sampled_from([1e-3, 1.0, 1e3]), "iterations": st.integers(1, 4)},
    "fltrust": {"per": per},
    "caf": {"f": f, "per": per, "largest": st.sampled_from(["positive", "all"])},
    "dnc": {"f": few, "iterations": st.just(1)},
    "sign_majority": {"step": st.sampled_from([1.0, 0.1])},
    "rlr": {"threshold": st.integers(0, 17)},
    "signguard": {
        "low": st.sampled_from([0.0, 0.1, 1.0]),
        "high": st.sampled_from([1.0, 3.0]),
        "share": st.just(1.0),  # all coordinates, whatever numbers are drawn
    },
    "flame": {"noise": st.sampled_from([0.0, 0.1])},
    "foolsgold": {"memory": st.sampled_from(["run", "round"]), "confidence": st.sampled_from([1.0, 0.1])},
    "loss_score": {
        "f": f,
        "rho": st.sampled_from([0.0, 1e-3]),
        "normalise": st.booleans(),
        "keep": st.sampled_from(["n-f", "positive"]),
    },
}
REFERENCES |= {kind: (st.fixed_dictionaries(keys), check_transcription) for kind, keys in KEYS.items()}


def context_of(rule: Rule, case: Case) -> Context:
    target = case.reference.astype(np.float64)
    return Context(
        case.reference if "reference" in rule.needs else None,
        lambda vector: transcriptions.loss_of(vector, target),
        np.random.default_rng(0),
        Arrays(),
    )


def kinds() -> list[str]:
    return [name for name, rule in active().of("rules").items() if rule.mode == "sync"]


def test_every_rule_has_a_reference() -> None:
    assert sorted(kinds()) == sorted(REFERENCES), "a rule needs a plain transcription of its formula here"


@pytest.mark.parametrize("kind", sorted(set(kinds()) - set(KEYS)))
@settings(deadline=None, max_examples=examples(200), derandomize=True)
@given(data=st.data())
def test_follows_its_definition(kind: str, data: st.DataObject) -> None:
    compare(kind, data)


@pytest.mark.parametrize("kind", sorted(KEYS))
@settings(deadline=None, max_examples=examples(60), derandomize=True)
@given(data=st.data())
def test_follows_its_transcription(kind: str, data: st.DataObject) -> None:
    compare(kind, data)


def compare(kind: str, data: st.DataObject) -> None:
    keys, check = REFERENCES[kind]
    rule: Rule = active().of("rules")[kind](**data.draw(keys))
    case = data.draw(cases())
    width = data.draw(st.sampled_from([1, 3, 1000]))
    before = case.updates.copy()
    with patch.object(blocks, "TILE", 1), patch.object(blocks, "COLUMNS", width):
        combined, _ = combine_finite(rule, Updates.of(case.updates, case.layout), context_of(rule, case))
    assert combined.update.shape == (case.layout.size,)
    assert combined.update.dtype == np.float32
    assert np.isfinite(combined.update).all()
    assert combined.accepted.shape == (len(case.updates), len(case.layout.blocks))
    assert combined.accepted.dtype == np.bool_
    assert np.array_equal(case.updates.view(np.int32), before.view(np.int32)), "the updates were changed"
    check(rule, case, combined)
