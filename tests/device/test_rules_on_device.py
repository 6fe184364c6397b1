"""The Triton kernels of the rules give what the definitions give, wherever the updates lie and whatever is missing.

Without a GPU they run in Triton's interpreter; tests/gpu/test_device_rules.py runs the same tests on one.
"""

from types import SimpleNamespace
from typing import ClassVar
from unittest.mock import patch

import numpy as np
import pytest
from definitions import DEVICE, GPU, REFERENCES, array, cases, tensor, torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from hpcps.numerics import device
from hpcps.numerics.device import engine, filtering, packing, segments
from hpcps.numerics.device.updates import DeviceUpdates
from hpcps.numerics.layout import Layout
from hpcps.numerics.packing import pack, unpack
from hpcps.numerics.updates import Updates
from hpcps.registry import active
from hpcps.rules import Average, Context, Krum, Median, Phocas, TrimmedMean, Zeno, ZenoPlusPlus, combine
from hpcps.rules.on_device import DeviceContext
from hpcps.rules.preaggregation import Nnm

LAYOUT = Layout.of([("a", (17, 3)), ("b", (17,)), ("none", (0,)), ("c", (301,)), ("e", (128,))])
KINDS = ["average", "trimmed_mean", "median", "phocas", "zeno"]
RULES = [Average(), TrimmedMean(), Median(), Phocas(), Zeno(rho=0.0, epsilon=1.0), Zeno(rho=-1e6, epsilon=1e6)]
pytestmark = pytest.mark.filterwarnings("ignore:(invalid value|overflow):RuntimeWarning")  # of numpy's, as interpreter
EXAMPLES = settings(deadline=None, max_examples=30, derandomize=True)


def smaller(elements):
    """Have small updates fill several segments in the interpreter; on a GPU, segments have one size."""
    return patch.object(segments, "INTERPRETED", elements)


@pytest.fixture(autouse=True, scope="module")
def small_segments():
    with smaller(256):
        yield


def made(n, layout=LAYOUT, seed=0):
    rng = np.random.default_rng(seed + n)
    rows = rng.standard_normal((n, layout.size), dtype=np.float32)
    rows *= 10.0 ** rng.integers(-6, 7, rows.shape)
    rows[rng.random(rows.shape) < 0.1] = -0.0
    rows[rng.random(rows.shape) < 0.1] = 1.0
    v = (rows[0] + np.float32(0.5) * rng.permutation(rows[-1])).astype(np.float32)
    return rows.astype(np.float32), v


def on_device(rule, updates, **context):
    """Combine a host's updates on the device; return arrays."""
    payloads = [tensor(payload) for payload in updates.payloads]
    there = DeviceUpdates(updates.layout, payloads, updates.sent)
    given = {name: value if isinstance(value, torch.Tensor) else tensor(value) for name, value in context.items()}
    found = rule.device_kernel(len(payloads))(there, DeviceContext(**given))
    for payload, kept in zip(payloads, updates.payloads, strict=True):
        assert array(payload).tobytes() == kept.tobytes(), "the updates were changed"
    return SimpleNamespace(**{name: array(value) for name, value in vars(found).items()})


@pytest.mark.parametrize("kind", KINDS)
@EXAMPLES
@given(data=st.data())
def test_follows_its_definition(kind, data):
    keys, check = REFERENCES[kind]
    rule = active().of("rules")[kind](**data.draw(keys))
    case = data.draw(cases())
    assume(len(case.updates))
    combined = on_device(rule, Updates.of(case.updates, case.layout), reference=case.reference)
    assert combined.update.dtype == np.float32
    assert combined.finite
    assert not combined.refused.any()
    check(rule, case, combined)


@EXAMPLES
@given(
    rule=st.sampled_from([*RULES, TrimmedMean(trim=0.0)]),
    n=st.integers(1, 6),
    sizes=st.lists(st.sampled_from([0, 1, 4, 9, 40, 64]), max_size=5),
    rate=st.sampled_from([0.0, 0.02, 0.3]),
    into=st.sampled_from(["nothing", "out", "base", "in place"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_rejects_blocks_that_are_not_finite(rule, n, sizes, rate, into, seed):
    rng = np.random.default_rng(seed)
    layout = Layout.of([(f"b{i}", (size,)) for i, size in enumerate(sizes)])
    whole = rng.choice(np.array([0.0, -0.0, 1.5, 1e-45, 3.4e38, -3.4e38], np.float32), (n, layout.size))
    bad = rng.random(whole.shape) < rate
    whole[bad] = rng.choice(np.array([np.nan, np.inf, -np.inf], np.float32), int(bad.sum()))
    sent = rng.random((n, len(sizes))) < 0.7
    payloads = [pack(layout, row, mask, np.empty_like(row)) for row, mask in zip(whole, sent, strict=True)]
    reference, base = (rng.standard_normal(layout.size, dtype=np.float32) for _ in range(2))
    updates = Updates(layout, payloads, sent)
    context = {} if into in ("nothing", "out") else {"base": base}
    want, refused = combine(rule, updates, Context(reference, **context))
    out = tensor(base)
    context = {name: out if into == "in place" else tensor(value) for name, value in context.items()}
    if into != "nothing":
        context["out"] = out
    with smaller(32):
        got = on_device(rule, updates, reference=reference, **context)
    assert np.array_equal(got.refused, refused)
    assert np.array_equal(got.accepted, want.accepted)
    np.testing.assert_allclose(got.update, want.update, rtol=3e-7, atol=1e-45)
    assert into == "nothing" or np.array_equal(got.update, array(out))
    assert bool(got.finite) is want.finite


@pytest.mark.parametrize("rule", [Average(), Median(), Zeno(), TrimmedMean()], ids=repr)
def test_a_sum_with_the_base_that_overflows_is_told(rule):
    top = np.full(LAYOUT.size, np.finfo(np.float32).max, np.float32)
    updates = Updates.of(np.stack([top] * (2 if rule.kind == "trimmed_mean" else 3)), LAYOUT)
    zero = rule.kind == "trimmed_mean"  # of two updates
    assert bool(on_device(rule, updates, reference=top, base=top).finite) is zero
    assert on_device(rule, updates, reference=top, base=-top).finite
    assert not on_device(rule, updates, reference=top, base=np.where(top > 0, np.float32(np.nan), top)).finite


@pytest.mark.parametrize("rule", RULES[:5], ids=repr)
@pytest.mark.parametrize("n", [1, 3, 10, *(pytest.param(n, marks=pytest.mark.soak) for n in (2, 33, 64))])
def test_agrees_with_the_host_for_any_number_of_updates(rule, n):
    rows, v = made(n)
    host, there = (rule(x, blocks=LAYOUT.sizes.tolist(), reference=v) for x in (rows, tensor(rows)))
    assert there.device.type == DEVICE
    np.testing.assert_allclose(array(there), host, rtol=3e-7, atol=1e-45)


def test_more_updates_than_registers_hold_are_sorted_on_the_host():
    rows, v = made(engine.MOST_SORTED + 1, Layout.of([("w", (9,))]))
    assert Median().device_kernel(len(rows)) is None
    assert np.array_equal(array(Median()(tensor(rows))), Median()(rows))
    for rule in (Average(), Zeno(rho=-1e6, epsilon=1e6)):
        np.testing.assert_allclose(array(rule(tensor(rows), reference=tensor(v))), rule(rows, reference=v), rtol=3e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("rule", RULES[:5], ids=repr)
def test_other_floating_types_are_read_where_they_are(rule, dtype):
    rows, v = made(5)
    rows = tensor(np.clip(rows, -6e4, 6e4), dtype)
    want = rule(rows.cpu().float().numpy(), reference=v)
    got = rule(rows, reference=tensor(v, dtype).float())
    assert got.dtype == dtype
    if rule.kind != "zeno":
        assert np.array_equal(array(got.float()), array(tensor(want).to(dtype).float()))


def test_views_and_unaligned_rows():
    rows, v = made(5)
    for values in (tensor(rows.T.copy()).T, tensor(np.pad(rows, ((0, 0), (1, 2))))[:, 1:-2]):
        for rule in (Average(), Median(), Zeno()):
            np.testing.assert_allclose(array(rule(values, reference=v)), rule(rows, reference=v), rtol=3e-7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_segments_that_are_read_wide_are_aligned(dtype):
    rng = np.random.default_rng(0)
    seen = set()
    for shift in range(9):
        layout = Layout.of([(str(i), (int(size),)) for i, size in enumerate(rng.choice([0, 4, 8, 300, 302, 2056], 12))])
        sent = rng.random((3, 12)) < 0.8
        payloads = [torch.zeros(int(layout.sizes[mask].sum()) + 16, dtype=dtype, device=DEVICE)[16:] for mask in sent]
        payloads[0] = torch.zeros(len(payloads[0]) + shift, dtype=dtype, device=DEVICE)[shift:]
        updates, out = DeviceUpdates(layout, payloads, sent), torch.zeros(layout.size + 4, device=DEVICE)[4:]
        found = segments.segments_of(updates, 256, None, out)
        for number, block, start, count in found.rows[: found.aligned].tolist():
            assert number >= found.starts[block]
            assert count % segments.VECTOR == 0
            held = updates.places[sent[:, block], block] + dtype.itemsize * (start - layout.offsets[block])
            assert not np.append(held, out.data_ptr() + 4 * start).astype(int).__mod__(16).any()
        assert sorted(found.rows[:, 0].tolist()) == list(range(len(layout.segments(256))))
        seen |= {found.aligned > 0, found.aligned == len(found)}
    assert seen == {True, False}


@pytest.mark.parametrize("rule", [Median(before=[Nnm()]), Median(skipped="left_out"), Phocas(f=0)], ids=repr)
def test_what_is_done_before_a_rule_is_done(rule):
    rows, _ = made(7)
    rows[2, 60] = np.nan
    host, there = (rule(x, blocks=LAYOUT.sizes.tolist()) for x in (rows, tensor(rows)))
    np.testing.assert_allclose(array(there), host, rtol=3e-7, atol=1e-45)


@pytest.mark.parametrize("bad", [0.0, np.nan, np.inf])
@pytest.mark.parametrize("rho", [-10.0, 0.0])
def test_zeno_accepts_nothing_against_a_zero_or_non_finite_reference(bad, rho):
    v = np.array([1, 1, bad, bad, bad], np.float32)
    if not np.isfinite(bad):
        v[3] = 0.0
    rows = np.array([[1, 1, 0, 0, 0], [1, 0.5, 1, -1, 1]], np.float32)
    layout = Layout.of([("good", (2,)), ("bad", (3,)), ("empty", (0,))])
    found = on_device(Zeno(rho=rho), Updates.of(rows, layout), reference=v)
    assert found.accepted.tolist() == [[True, False, False]] * 2
    assert found.update.tolist() == [1.0, 0.75, 0.0, 0.0, 0.0]


class Allocations(TorchDispatchMode):
    """Fails when torch waits for the device, copies from it, or makes a tensor of `most` elements."""

    def __init__(self, most):
        super().__init__()
        self.most = most

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        assert function is not torch.ops.aten._local_scalar_dense.default, "it waits for the device"
        result = function(*args, **(kwargs or {}))
        known = {each.untyped_storage().data_ptr() for each in args if isinstance(each, torch.Tensor)}
        for made in [result] if isinstance(result, torch.Tensor) else []:
            new = made.untyped_storage().data_ptr() not in known
            assert not new or made.numel() < self.most, f"{function} makes {list(made.shape)}"
            assert not (GPU and made.device.type == "cpu" and any(getattr(a, "is_cuda", False) for a in args))
        return result


@pytest.mark.parametrize("rule", RULES[:5], ids=repr)
def test_nothing_of_the_size_of_the_updates_is_made_or_copied(rule):
    rows, v = made(5)
    rows[1, 60] = np.nan
    values, reference = tensor(rows), tensor(v)
    want = array(rule(values, reference=reference))
    with Allocations(2 * LAYOUT.size):
        got = rule(values, reference=reference)
    assert array(got).tobytes() == want.tobytes(), "the same call gave something else"


def test_a_rule_that_replaces_the_definition_does_not_inherit_the_kernel():
    class Doubled(TrimmedMean):
        def combine(self, updates, context):
            found = super().combine(updates, context)
            found.update[:] *= 2
            return found

    class Renamed(TrimmedMean):
        notes: ClassVar[str] = "nothing is replaced"

    rows, _ = made(5)
    for rule, factor in ((Doubled(), 2), (Renamed(), 1)):
        np.testing.assert_allclose(array(rule(tensor(rows))), factor * TrimmedMean()(rows), rtol=3e-7)


@pytest.mark.parametrize(
    ("rule", "n", "keys"),
    [
        (Zeno(), 3, {}),
        (Zeno(), 3, {"reference": np.zeros(3, np.float32)}),
        (Zeno(), 3, {"reference": np.zeros((1, LAYOUT.size), np.float32)}),
        (Average(), 3, {"blocks": [1, 2]}),
        (Average(), 3, {"blocks": [-1]}),
        (Krum(f=20), 15, {}),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_mistakes_are_the_host_s(rule, n, keys):
    rows, _ = made(n)
    with pytest.raises(ValueError, match=r".") as host:
        rule(rows, **keys)
    keys = {name: tensor(value) if name == "reference" else value for name, value in keys.items()}
    with pytest.raises(ValueError, match=r".") as there:
        rule(tensor(rows), **keys)
    assert str(there.value) == str(host.value)


def test_zeno_thresholds_are_strict():
    rng = np.random.default_rng(5)
    layout = Layout.of([("a", (600,)), ("b", (10,)), ("c", (1,))])
    v = rng.standard_normal(layout.size, dtype=np.float32)
    updates = np.stack([v, -v, np.float32(2) * v])
    decided = [
        (Zeno(rho=1.0), [0], [[False] * 3]),
        (Zeno(rho=-1.0), [1], [[False] * 3]),
        (Zeno(epsilon=0.0), [0], [[False] * 3]),
        (Zeno(epsilon=3.0), [0, 1, 2], [[True] * 3, [False] * 3, [False] * 3]),
        (Zeno(rho=-1.001, epsilon=3.001), [0, 1, 2], [[True] * 3] * 3),
    ]
    for rule, rows, accepted in decided:
        assert on_device(rule, Updates.of(updates[rows], layout), reference=v).accepted.tolist() == accepted


@pytest.fixture
def sampling(monkeypatch):
    """Have small blocks sampled, too."""
    monkeypatch.setattr(filtering, "SMALLEST_SAMPLED", 0)
    for name, value in {"SAMPLED": 2, "SAMPLES": 2}.items():
        monkeypatch.setattr(segments, name, value)
    segments.sampled.cache_clear()
    yield
    segments.sampled.cache_clear()


@pytest.mark.usefixtures("sampling")
def test_zeno_counts_a_block_as_zero_that_the_sample_showed_as_finite():
    size, outside = (100_000, 3000) if GPU else (1300, 300)  # an element of the second segment
    v = np.ones(size, np.float32)
    rows = np.stack([-v, v, v])
    rows[0, outside] = np.nan
    found = on_device(Zeno(), Updates.of(rows, Layout.of([("w", (size,))])), reference=v)
    assert found.accepted.all()
    assert found.refused[:, 0].tolist() == [True, False, False]
    assert np.array_equal(found.update, v * np.float32(2 / 3))


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.usefixtures("sampling")
def test_a_wrong_prediction_of_zeno_is_corrected(monkeypatch, sampled, in_place):
    """Half of the updates are turned, in one block only from the middle on, which a sample may not show."""
    if not sampled:
        monkeypatch.setattr(filtering, "SMALLEST_SAMPLED", 1 << 62)
    size = 100_000 if GPU else 1300
    layout = Layout.of([("first", (size,)), ("small", (3,)), ("second", (size + 1,))])
    rng = np.random.default_rng(0)
    v = rng.standard_normal(layout.size, dtype=np.float32)
    rows = np.float32(0.9) * v + np.float32(0.01) * rng.standard_normal((6, layout.size), dtype=np.float32)
    rows[::2, : size // 2] *= -1
    rows[::2, size // 2 : size + 3] *= np.float32(-1.1)
    rows[1, 5], rows[3, 2 * size] = np.nan, np.inf
    base = rng.standard_normal(layout.size, dtype=np.float32)
    want, refused = combine(Zeno(rho=0.0), Updates.of(rows, layout), Context(v, base=base))
    assert want.accepted.any(axis=0).all()
    assert not want.accepted.all(axis=0).any()
    there = tensor(base)
    context = {"base": there, "out": there} if in_place else {"base": there}
    got = on_device(Zeno(rho=0.0), Updates.of(rows, layout), reference=v, **context)
    assert np.array_equal(got.accepted, want.accepted)
    assert np.array_equal(got.refused, refused)
    np.testing.assert_allclose(got.update, want.update, rtol=3e-7, atol=1e-7)


@EXAMPLES
@given(
    sizes=st.lists(st.sampled_from([0, 1, 4, 9, 40]), min_size=1, max_size=5),
    threshold=st.sampled_from([-1.0, -0.5, -0.02, 0.0]),
    rate=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 2**32 - 1),
)
def test_zeno_plus_plus_agrees_with_the_host(sizes, threshold, rate, seed):
    rng = np.random.default_rng(seed)
    v, noise = rng.standard_normal((2, sum(sizes)), dtype=np.float32)
    # With noise, because rounding decides on a cosine that equals the threshold.
    update = np.repeat(rng.choice([-1, 0, 1, 1e-20], len(sizes)), sizes) * v + rng.choice([0.1, 0.5, 3]) * noise
    update = update.astype(np.float32)
    update[rng.random(update.shape) < rate] = np.nan
    v[rng.random(v.shape) < rate / 3] = np.inf
    rule = ZenoPlusPlus(threshold=threshold)
    with np.errstate(over="ignore"):
        want = rule(update.copy(), blocks=sizes, reference=v)
    with smaller(32):
        got = rule(tensor(update), blocks=sizes, reference=tensor(v))
    np.testing.assert_allclose(array(got), want, rtol=3e-7, atol=1e-45)


def test_zeno_plus_plus_in_place():
    rows, v = made(2)
    update = tensor(rows[1])
    whole = DeviceUpdates.of(update[None], LAYOUT)
    found = ZenoPlusPlus().device_kernel()(whole, DeviceContext(tensor(v), out=update))
    assert found.update is update
    sizes = LAYOUT.sizes.tolist()
    np.testing.assert_allclose(array(update), ZenoPlusPlus()(rows[1], blocks=sizes, reference=v), rtol=3e-7, atol=1e-45)
    assert (array(found.applied) >= array(found.negated)).all()
    assert array(found.negated).any()


def test_sent_blocks_are_packed_and_unpacked():
    rows, _ = made(1)
    for seed in range(3):
        mask = np.random.default_rng(seed).random(len(LAYOUT.blocks)) < (0.6, 0.0, 1.0)[seed % 3]
        room, there = np.full(LAYOUT.size + 8, 7, np.float32), tensor(np.full(LAYOUT.size + 8, 7))
        want, got = pack(LAYOUT, rows[0], mask, room), packing.pack(LAYOUT, tensor(rows[0]), mask, there)
        assert array(there).tobytes() == room.tobytes()
        assert array(got).tobytes() == want.tobytes()
        back, there = np.full(LAYOUT.size, 7, np.float32), tensor(np.full(LAYOUT.size, 7))
        unpack(LAYOUT, want, mask, back)
        packing.unpack(LAYOUT, got, mask, there)
        assert array(there).tobytes() == back.tobytes()


def test_a_device_on_which_triton_fails_is_left_to_the_host(monkeypatch):
    def fails(device):
        raise RuntimeError("no C compiler\nand more")

    monkeypatch.setattr(packing, "trial", fails)
    device.ready.cache_clear()
    rows, _ = made(5)
    with pytest.warns(RuntimeWarning, match="rules run on the host, not on .*: no C compiler$"):
        got = Average()(tensor(rows))
    assert array(got).tobytes() == Average()(rows).tobytes()
    device.ready.cache_clear()
