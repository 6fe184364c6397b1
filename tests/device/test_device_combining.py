"""Combining in device memory gives what combining on the host gives, with a kernel of the rule or without."""

from dataclasses import replace

import numpy as np
import pytest
from definitions import DEVICE, array, tensor, torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_rules_on_device import EXAMPLES, smaller

from hpcps.numerics.device.updates import DeviceUpdates
from hpcps.numerics.layout import Layout
from hpcps.numerics.packing import pack
from hpcps.numerics.updates import Updates
from hpcps.roles.asynchronous.filter import UpdateFilter, UpdateHeader
from hpcps.rules import (
    Average,
    Context,
    FedAsync,
    GeometricMedian,
    Krum,
    Median,
    NaiveAsync,
    Phocas,
    TrimmedMean,
    Zeno,
    ZenoPlusPlus,
    combine,
)
from hpcps.rules.asynchronous import AsyncRule, Decision
from hpcps.rules.device_combining import combine as combine_there
from hpcps.rules.device_combining import decide, why_on_host
from hpcps.rules.on_device import DeviceContext
from hpcps.rules.preaggregation import Nnm

pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")  # of numpy's, as interpreter
RULES = [
    Average(),
    TrimmedMean(),
    Median(),
    Phocas(),
    Zeno(rho=0.0, epsilon=1.0),
    Krum(f=1),
    GeometricMedian(),
    Zeno(rho=0.0, epsilon=1.0, skipped="left_out"),
    Average(before=[Nnm(f=1)]),
]


class Halves(AsyncRule):
    """A rule without a kernel: applies half of the first blocks."""

    kind: str = "halves"

    def decide(self, update, context):
        applied = context.sent & (np.arange(len(context.sent)) < 2)
        update *= np.float32(0.5)
        return Decision(applied, np.zeros_like(applied))


def received(n, sizes, rate, seed):
    """Make updates as they come, some of them not finite, and a reference and a model."""
    rng = np.random.default_rng(seed)
    layout = Layout.of([(f"b{i}", (size,)) for i, size in enumerate(sizes)])
    whole = rng.standard_normal((n, layout.size), dtype=np.float32)
    bad = rng.random(whole.shape) < rate
    whole[bad] = rng.choice(np.array([np.nan, np.inf, -np.inf], np.float32), int(bad.sum()))
    sent = rng.random((n, len(sizes))) < 0.8
    payloads = [pack(layout, row, mask, np.empty_like(row)) for row, mask in zip(whole, sent, strict=True)]
    reference, base = (rng.standard_normal(layout.size, dtype=np.float32) for _ in range(2))
    there = DeviceUpdates(layout, [tensor(payload) for payload in payloads], sent, device=torch.device(DEVICE))
    return Updates(layout, payloads, sent), there, reference, base


@pytest.mark.parametrize("rule", RULES, ids=repr)
@settings(EXAMPLES, max_examples=12)
@given(
    n=st.integers(0, 6),
    sizes=st.lists(st.sampled_from([0, 1, 4, 40]), min_size=1, max_size=4),
    rate=st.sampled_from([0.0, 0.03]),
    into=st.sampled_from(["nothing", "out", "base"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_combines_as_on_the_host(rule, n, sizes, rate, into, seed):
    updates, there, reference, base = received(n, sizes, rate, seed)
    context = Context(reference, base=base if into == "base" else None)
    want, refused = combine(rule, updates, context)
    out = None if into == "nothing" else torch.empty(len(base), device=DEVICE)
    with smaller(32):
        got = combine_there(
            rule, there, DeviceContext(tensor(reference), tensor(base) if into == "base" else None, out)
        )
    found = got.fetch()
    assert out is None or got.update is out
    np.testing.assert_array_equal(found.refused, refused)
    np.testing.assert_array_equal(found.accepted, want.accepted)
    assert found.finite is want.finite
    exact = why_on_host(rule, n) if n else True
    np.testing.assert_allclose(array(got.update), want.update, rtol=0 if exact else 1e-6, atol=0 if exact else 1e-45)


@pytest.mark.parametrize("rule", [NaiveAsync(), FedAsync(), ZenoPlusPlus(), Halves()], ids=repr)
@settings(EXAMPLES, max_examples=12)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 4, 40]), min_size=1, max_size=4),
    rate=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 2**32 - 1),
)
def test_decides_as_the_filter_of_a_role(rule, sizes, rate, seed):
    updates, there, reference, _ = received(1, sizes, rate, seed)
    plain = UpdateFilter(rule, updates.layout, RuleStateless)
    filtered = plain(UpdateHeader(None, 0, mask=updates.sent[0], payload=updates.payloads[0]), 1.0, reference)
    out = torch.empty(updates.layout.size, device=DEVICE)
    with smaller(32):
        got = decide(rule, there, DeviceContext(tensor(reference), out=out))
    found = got.fetch()
    assert got.update is out
    np.testing.assert_array_equal(found.refused[0], filtered.rejected)
    np.testing.assert_array_equal(found.accepted[0], filtered.applied)
    assert int(found.negated.sum()) == filtered.tally.turned
    want = np.where(updates.layout.spread(filtered.applied), plain.update, np.float32(0))
    np.testing.assert_allclose(array(got.update), want, rtol=3e-7, atol=1e-45)


class RuleStateless:
    """What a rule without state and noise keeps."""

    random = None
    arrays: dict = {}  # noqa: RUF012


def test_the_reason_for_the_host_is_named():
    assert [why_on_host(rule, 5) for rule in (Average(), Zeno(), ZenoPlusPlus(), NaiveAsync())] == [""] * 4
    assert why_on_host(Krum(f=1), 5) == "krum runs on the host: it has no kernel for a GPU"
    assert why_on_host(Halves(), 1) == "halves runs on the host: it has no kernel for a GPU"
    assert (
        why_on_host(Median(), 65) == "median runs on the host: it has no kernel for a GPU for 65 updates, more than 64"
    )
    assert "with `before` or `skipped`" in why_on_host(Average(before=[Nnm(f=1)]), 5)
    assert "with `before` or `skipped`" in why_on_host(Median(skipped="left_out"), 5)


def test_no_result_is_lost_in_fetching():
    _, there, reference, _ = received(3, (4, 9), 0.0, 1)
    got = combine_there(Zeno(rho=-1e6, epsilon=1e6), there, DeviceContext(tensor(reference)))
    found = replace(got, refused=~got.accepted).fetch()
    np.testing.assert_array_equal(found.accepted, array(got.accepted))
    np.testing.assert_array_equal(found.refused, ~found.accepted)
    assert not found.negated.any()
