"""Rules, pre-aggregators and attacks on tensors of torch give what they give on arrays, up to the rounding of sums."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from hpcps.numerics.layout import Layout
from hpcps.numerics.operations import gram
from hpcps.numerics.updates import Destination, Updates
from hpcps.protocol.messages import Peer
from hpcps.registry import active
from hpcps.roles.update.attacker import Attacker
from hpcps.rules import Arc, Bucketing, Clipping, Context, Foundation, Nnm, Rule, combine_finite
from hpcps.rules.asynchronous import decide_finite
from hpcps.rules.context import Arrays, AsyncContext
from hpcps.spec.schema import Run

LAYOUT = Layout.of([("a", (3000,)), ("b", (1,)), ("none", (0,)), ("c", (40, 30)), ("d", (2049,))])
KEYS = {
    "krum": {"f": 2}, "multi_krum": {"f": 2}, "bulyan": {"f": 2}, "phocas": {"f": 2}, "trimmed_mean": {"f": 2},
    "dnc": {"coordinates": 500}, "sign_majority": {"step": 0.01}, "loss_score": {"rho": 0.1, "f": 2},
    "norm_clipping": {"radius": 30.0}, "centered_clipping": {"radius": 30.0, "iterations": 3}, "rlr": {"threshold": 3},
}  # fmt: skip
SYNC = [name for name, rule in active().of("rules").items() if rule.mode == "sync"]
ASYNC = [name for name, rule in active().of("rules").items() if rule.mode == "async"]
VARIANTS = [
    *((name, KEYS.get(name, {})) for name in SYNC),
    ("median", {"middle": "lower"}), ("meamed", {"f": 3, "middle": "lower"}), ("zeno", {"rho": -1e6, "epsilon": 1e6}),
    ("aksel", {"keep": "n-f"}), ("geometric_median", {"start": "median"}), ("geometric_median", {"start": "mean"}),
    ("krum", {"f": 2, "per": "block"}), ("fltrust", {"per": "block"}), ("cge", {"f": 2, "per": "block"}),
    ("mean", {"before": (Nnm(f=2),)}), ("trimmed_mean", {"before": (Bucketing(size=2),), "f": 1}),
    ("krum", {"before": (Nnm(f=2),), "f": 2}), ("zeno", {"before": (Clipping(radius=60.0),)}),
    ("bulyan", {"before": (Arc(f=2),), "f": 2}), ("median", {"before": (Arc(f=2), Nnm(f=2, per="block"))}),
    ("median", {"before": (Foundation(),)}), ("krum", {"before": (Nnm(f=2), Foundation(per="block")), "f": 2}),
    ("aksel", {"before": (Nnm(f=2),)}), ("centered_clipping", {"before": (Clipping(radius=60.0),)}),
    *((name, {"skipped": "left_out", **KEYS.get(name, {})}) for name in ("mean", "median", "zeno", "trimmed_mean")),
]  # fmt: skip


RUN = Run.model_validate(
    {"name": "attacked", "topology": {"workers": 1}, "model": {"name": "mlp"}, "data": {"name": "digits"},
     "train": {"epochs": 1}}
)  # fmt: skip


def generators() -> list[np.random.Generator]:
    return [np.random.default_rng(1), np.random.default_rng(2)]


def made(n: int = 13) -> tuple[Updates, np.ndarray, np.ndarray]:
    """Invent n updates with skipped and bad blocks, a reference similar to them, and a base."""
    rng = np.random.default_rng(n)
    reference = rng.standard_normal(LAYOUT.size, dtype=np.float32)
    rows = reference + rng.standard_normal((n, LAYOUT.size), dtype=np.float32)
    rows[:2] *= -3
    rows[4] = rows[5]
    sent = rng.random((n, len(LAYOUT.blocks))) < 0.9
    rows[6, 10], rows[7, 3001:] = np.nan, np.inf
    payloads = [row[LAYOUT.spread(mask)] for row, mask in zip(rows, sent, strict=True)]
    return Updates(LAYOUT, payloads, sent), reference, rng.standard_normal(LAYOUT.size, dtype=np.float32)


def there(updates: Updates) -> Updates:
    """Return the same updates as tensors."""
    payloads = [torch.from_numpy(payload.copy()) for payload in updates.payloads]
    return Updates(updates.layout, payloads, updates.sent)


def context(reference) -> Context:
    def loss(vector) -> float:
        assert isinstance(vector, np.ndarray)
        return float(np.abs(vector).sum())

    return Context(reference, loss, np.random.default_rng(1), Arrays())


def assert_near(found, wanted: np.ndarray, updates: Updates, base: np.ndarray | None = None) -> None:
    """Within 1e-6 of the largest absolute value of each coordinate."""
    assert isinstance(found, torch.Tensor)
    assert found.dtype == torch.float32
    rows = np.nan_to_num(updates.tile(slice(0, updates.layout.size)), posinf=0, neginf=0)
    scale = np.maximum(np.abs(rows).max(axis=0, initial=0), 0 if base is None else np.abs(base))
    assert (np.abs(found.numpy() - wanted) <= 1e-6 * scale + 1e-30).all()


@pytest.mark.sample(15)
@pytest.mark.parametrize(("kind", "keys"), VARIANTS, ids=lambda value: str(value) if value else "")
def test_a_rule_gives_on_tensors_what_it_gives_on_arrays(kind: str, keys: dict[str, object]) -> None:
    rule: Rule = active().of("rules")[kind](**keys)
    for n in (13, 12):
        updates, reference, base = made(n)
        tensors, own = there(updates), torch.from_numpy(reference)
        wanted, refused = combine_finite(rule, updates, context(reference))
        found, also = combine_finite(rule, tensors, context(own))
        assert np.array_equal(also, refused)
        assert refused.any()
        assert np.array_equal(found.accepted, wanted.accepted)
        assert_near(found.update, wanted.update, updates)
        added = combine_finite(rule, updates.onto(Destination(base)), context(reference))[0]
        out = torch.from_numpy(base.copy())
        for to in (Destination(torch.from_numpy(base)), Destination(out, out)):  # type: ignore[arg-type]
            got = combine_finite(rule, tensors.onto(to), context(own))[0]
            assert got.finite is added.finite
            assert_near(got.update, added.update, updates, base)
            assert to.out is None or got.update is out


@pytest.mark.parametrize("kind", SYNC)
def test_few_updates_are_combined_as_on_arrays(kind: str) -> None:
    rule: Rule = active().of("rules")[kind](**KEYS.get(kind, {}))
    for n in (0, 1, 2):
        updates, reference, _ = made(13)
        few = Updates(LAYOUT, updates.payloads[:n], updates.sent[:n])
        out = torch.full((LAYOUT.size,), float("nan"))
        wanted, _ = combine_finite(rule, few, context(reference))
        to = Destination(out=out)  # type: ignore[arg-type]
        found, _ = combine_finite(rule, there(few).onto(to), context(torch.from_numpy(reference)))
        assert np.array_equal(found.accepted, wanted.accepted)
        assert_near(out, wanted.update, few)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_types_are_read_as_float32(dtype) -> None:
    rows = torch.randn(5, LAYOUT.size, generator=torch.Generator().manual_seed(1)).to(dtype)
    for name in ("mean", "median", "krum"):
        rule: Rule = active().of("rules")[name](**({"f": 1} if name == "krum" else {}))
        values = Updates.of(rows.float().numpy(), LAYOUT)
        assert_near(
            combine_finite(rule, Updates.of(rows, LAYOUT))[0].update, combine_finite(rule, values)[0].update, values
        )  # type: ignore[arg-type]


def test_a_tensor_that_overflows_float32_is_a_mistake_of_the_caller() -> None:
    rows = torch.ones((3, 3), dtype=torch.float64)
    rows[1, 2] = 1e39
    for name in ("mean", "median"):
        with pytest.raises(ValueError, match=r"updates\[1, 2\] is 1e\+39, beyond the range of float32"):
            active().of("rules")[name]()(rows)


@pytest.mark.parametrize("kind", ASYNC)
def test_a_decision_on_a_tensor_is_that_on_an_array(kind: str) -> None:
    rule = active().of("rules")[kind]()
    updates, reference, _ = made()
    for row in (0, 3, 6, 7):
        sent, payload = updates.sent[row], updates.payloads[row]
        here, out = np.empty(LAYOUT.size, np.float32), torch.empty(LAYOUT.size)
        wanted, refused = decide_finite(rule, payload, AsyncContext(reference, layout=LAYOUT, sent=sent), here)
        own = torch.from_numpy(reference)
        tensor = torch.from_numpy(payload.copy())
        found, also = decide_finite(rule, tensor, AsyncContext(own, layout=LAYOUT, sent=sent), out)  # type: ignore[arg-type]
        assert np.array_equal(also, refused)
        assert np.array_equal(found.applied, wanted.applied)
        assert np.array_equal(found.negated, wanted.negated)
        applied = LAYOUT.spread(found.applied)
        scale = np.abs(here[applied]).max(initial=0)
        assert (np.abs(out.numpy()[applied] - here[applied]) <= 1e-6 * scale).all()


def test_gram_matrices_of_tensors_are_float64() -> None:
    updates, reference, _ = made()
    good = updates.without(~np.isfinite([[0.0]] * len(updates)) | (np.arange(len(updates))[:, None] > 5))
    rows = good.tile(slice(0, LAYOUT.size))
    tensors = Updates.of(torch.from_numpy(rows), LAYOUT)  # type: ignore[arg-type]
    wanted = gram(Updates.of(rows, LAYOUT), reference)
    found = gram(tensors, torch.from_numpy(reference))
    assert found.dtype == np.float64
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-12 * np.abs(wanted).max())


def test_attacks_on_a_tensor_are_those_on_an_array() -> None:
    workers, classes = RUN.topology.workers, RUN.data.facts.classes
    for kind, attack in active().of("attacks").items():
        made_of = attack(rate=1.0) if "rate" in attack.model_fields else attack()
        if made_of.omniscient:
            continue
        update = np.random.default_rng(1).standard_normal(LAYOUT.size, dtype=np.float32)
        tensor, sent = torch.from_numpy(update.copy()), np.ones(len(LAYOUT.blocks), np.bool_)
        masks = [
            Attacker(Peer("worker", 0), made_of, workers, RUN.seed, classes, LAYOUT, *generators()).corrupt(
                each, sent, 1, 0
            )
            for each in (update, tensor)
        ]
        assert np.array_equal(*masks), kind
        assert tensor.numpy().tobytes() == update.tobytes(), kind


MEMORY = """
import sys
import numpy as np
from hpcps.numerics import kernels, operations
from hpcps.numerics.updates import Destination
from hpcps.numerics.operations import gram
from hpcps.numerics.layout import Layout
from hpcps.numerics.mixture import Mixture
from hpcps.numerics.updates import Updates

N = 16


def in_use(most):
    (line,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM" if most else "VmRSS"))
    return int(line.split()[1]) * 1024


def measure(d, library, limit):
    layout = Layout.of([("a", (d // 2,)), ("b", (d - d // 2,))])
    rows, out, own = np.ones((N, d), np.float32), np.ones(d, np.float32), np.ones(d, np.float32)
    rows += np.arange(N, dtype=np.float32)[:, None]
    if library == "torch":
        import torch

        torch.set_num_threads(1)
        rows, out, own = (torch.from_numpy(each) for each in (rows, out, own))
    updates = Updates(layout, list(rows), np.ones((N, 2), np.bool_), to=Destination(out=out, threads=2))
    mixture = Mixture(updates, np.full((1, N, N), 1 / N))
    for name, operation in {
        "screen": lambda: operations.screen(updates),
        "products": lambda: operations.products(updates, own),
        "norms_gram": lambda: operations.norms_gram(updates),
        "gram": lambda: gram(updates, own),
        "average": lambda: operations.average(updates),
        "mean_of_ranks": lambda: operations.mean_of_ranks(updates, 3, 13),
        "mean_around_trimmed_mean": lambda: operations.mean_around_trimmed_mean(updates, 3),
        "mean_around_median": lambda: operations.mean_around_median(updates, (7, 9), 10),
        "vote": lambda: operations.vote(updates, 0.1),
        "mean_by_agreement": lambda: operations.mean_by_agreement(updates, 3.0),
        "weighted_sum": lambda: operations.weighted_sum(updates, np.linspace(0, 1, N + 1), own),
        "mean_of_accepted": lambda: operations.mean_of_accepted(updates, own, lambda s: s.inner > 0, zeros=False),
        "scale": lambda: operations.scale(updates.select(np.arange(1)), np.full(2, 0.5)),
        "zero_result": lambda: operations.zero_result(updates),
        "mean_of_ranks of a mixture": lambda: operations.mean_of_ranks(mixture, 3, 13),
        "weighted_sum of a mixture": lambda: operations.weighted_sum(mixture, np.linspace(0, 1, N)),
    }.items():
        open("/proc/self/clear_refs", "w").write("5")
        before = in_use(most=False)
        operation()
        extra = in_use(most=True) - before
        assert extra <= limit, f"{name}: {extra / 2**20:.0f} MiB besides the result"
        print(f"{name}: {extra / 2**20:.1f} MiB")


measure(40_000, sys.argv[2], float("inf"))  # loads libraries and kernels
measure(int(sys.argv[1]), sys.argv[2], 64 << 20)
"""


@pytest.mark.usefixtures("starts_processes")
@pytest.mark.parametrize("size", [2_500_000, pytest.param(25_000_000, marks=pytest.mark.soak)])
@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_no_operation_needs_much_memory_besides_its_result(library: str, size: int) -> None:
    """The array for the result is given, so that what an operation allocates is temporary."""
    done = subprocess.run([sys.executable, "-c", MEMORY, str(size), library], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
