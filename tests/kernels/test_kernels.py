"""Kernels give what the definitions give, to the last bit, wherever the updates lie, with any number of threads."""

import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from python_libraries import LIBRARIES

from hpcps.numerics import kernels
from hpcps.numerics.definitions import comparators, needed
from hpcps.numerics.kernels import pointers
from hpcps.numerics.layout import Layout
from hpcps.numerics.operations import products, screen
from hpcps.numerics.updates import Destination, NotFiniteError, Updates
from hpcps.numerics.vectors import pack
from hpcps.rules import (
    Average,
    Bulyan,
    Meamed,
    Median,
    Phocas,
    Rlr,
    Rule,
    SignMajority,
    TrimmedMean,
    Zeno,
    ZenoPlusPlus,
    combine_finite,
)
from hpcps.rules.context import AsyncContext, Context

ROOT = Path(__file__).parents[2]
LAYOUT = Layout.of(
    [("a", (17, 31)), ("b", (17,)), ("none", (0,)), ("c", (3001,)), ("d", (1,)), ("e", (5000,)), ("f", (2048,))]
)
RULES = [
    Average(),
    TrimmedMean(),
    TrimmedMean(trim=0.4),
    Median(),
    Phocas(),
    Phocas(trim=0.4),
    Zeno(rho=0.0, epsilon=1.0),
    Zeno(rho=-1e6, epsilon=1e6),
]
FURTHER = [Meamed(f=0.2), Phocas(f=0.3), Meamed(f=0.49), Bulyan(f=2), SignMajority(), Rlr(threshold=2)]
SIZES = [*range(1, 10), 12, *range(15, 18), *range(31, 34), 64, 65, 100]
FEW = [1, 2, 3, 5, 8, 16, 33]

if not kernels.installed():
    pytest.skip("numba is missing: it is optional", allow_module_level=True)


@pytest.fixture(autouse=True)
def threads_share_small_work(monkeypatch):
    monkeypatch.setattr(pointers, "SMALLEST_SHARED", 0)
    monkeypatch.setattr("hpcps.numerics.kernels.engine.SMALLEST_SHARED_MEAN", 0)


def by(path: str):
    """Have rules use kernels for everything, or for nothing."""
    return patch.object(kernels, "SMALLEST", {"kernels": 0, "numpy": 1 << 62}[path])


def made(n: int, *, offset: int = 0, refused: bool = False) -> tuple[Updates, np.ndarray, np.ndarray]:
    """Invent n updates with blocks left out (and some refused), v and a base; payloads `offset` bytes past a line."""
    rng = np.random.default_rng(n)
    whole = rng.standard_normal((n, LAYOUT.size), dtype=np.float32)
    whole *= 10.0 ** rng.integers(-6, 7, whole.shape)
    whole[rng.random(whole.shape) < 0.1] = -0.0
    whole[rng.random(whole.shape) < 0.1] = 1.0
    v = (whole[0] + np.float32(0.5) * rng.permutation(whole[-1])).astype(np.float32)
    sent = rng.random((n, len(LAYOUT.blocks))) < 0.8
    payloads = []
    for row, mask in zip(whole, sent, strict=True):
        raw = np.zeros(LAYOUT.size * 4 + 192, np.uint8)
        raw = raw[(offset - raw.ctypes.data) % 64 :][: LAYOUT.size * 4]
        payloads.append(pack(LAYOUT, row, mask, raw.view(np.float32)))
    updates = Updates(LAYOUT, payloads, sent)
    bad = sent & (rng.random(sent.shape) < 0.2) if refused else np.zeros_like(sent)
    for row, index in np.argwhere(bad & (LAYOUT.sizes > 0)):
        start = int(updates.starts[row, index])
        payloads[row][start + int(LAYOUT.sizes[index]) // 2] = (np.nan, np.inf, -np.inf)[row % 3]
    base = rng.standard_normal(LAYOUT.size, dtype=np.float32)
    return (updates.without(screen(updates)) if refused else updates), v, base


@pytest.mark.sample(4)
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: repr(rule))
def test_every_rule_is_its_definition(rule: Rule) -> None:
    is_its_definition(rule, FEW)


@pytest.mark.sample(1, 4)
@pytest.mark.thorough
@pytest.mark.parametrize("rule", RULES, ids=lambda rule: repr(rule))
def test_every_rule_is_its_definition_for_the_other_sizes(rule: Rule) -> None:
    is_its_definition(rule, [n for n in SIZES if n not in FEW])


@pytest.mark.thorough
@pytest.mark.parametrize("rule", [rule for rule in RULES if isinstance(rule, Zeno)], ids=lambda rule: repr(rule))
def test_a_rule_that_predicts_from_samples_is_its_definition(rule: Rule, monkeypatch) -> None:
    """Small updates are treated as those that fill no cache are."""
    for name, value in {"SMALLEST_SAMPLED": 0, "SAMPLED": 2, "SAMPLES": 2}.items():
        monkeypatch.setattr(f"hpcps.numerics.kernels.engine.{name}", value)
    is_its_definition(rule, SIZES)


@pytest.mark.parametrize("rule", FURTHER, ids=lambda rule: repr(rule))
def test_further_rules_are_their_definitions(rule: Rule) -> None:
    is_its_definition(rule, [1, 2, 3, 4, 7, 11, 12, 16, 17, 35])


def is_its_definition(rule: Rule, sizes: list[int]) -> None:
    for n in sizes:
        for offset, refused in ((0, False), (4, True), (37, False)):
            updates, v, base = made(n, offset=offset, refused=refused)
            context = Context(v)
            with by("numpy"):
                want, _ = combine_finite(rule, updates, context)
                added, _ = combine_finite(rule, updates.onto(Destination(base)), context)
            with by("kernels"):
                for threads in (1, 3):
                    got, _ = combine_finite(rule, updates.onto(Destination(threads=threads)), context)
                    assert got.update.tobytes() == want.update.tobytes(), f"n = {n}"
                    assert np.array_equal(got.accepted, want.accepted)
                    out = np.full_like(base, 7)
                    got, _ = combine_finite(rule, updates.onto(Destination(base, out, threads)), context)
                    assert got.update is out
                    assert out.tobytes() == added.update.tobytes(), f"n = {n}, added to a base"
                    if refused:
                        out[:] = base
                        combine_finite(rule, updates.onto(Destination(out, out, threads)), context)
                        assert out.tobytes() == added.update.tobytes(), f"n = {n}, added in place"


def test_nothing_is_written_beside_the_result() -> None:
    updates, v, _ = made(4)
    with by("kernels"):
        for rule in (Average(), Median(), Zeno()):
            want = rule.combine(updates, Context(v)).update
            for start in range(17):
                room = np.full(LAYOUT.size + 64, 7, np.float32)
                out = room[start : start + LAYOUT.size]
                rule.combine(updates.onto(Destination(out=out)), Context(v))
                assert np.array_equal(out, want)
                out[:] = 7
                assert (room == 7).all()


@pytest.mark.parametrize("n", [1, 2, 5, 16, 33])
def test_products_and_screening_are_their_definitions(n: int) -> None:
    for refused in (False, True):
        updates, v, _ = made(n, refused=refused)
        dirty = Updates(LAYOUT, updates.payloads, updates.sent)
        with by("numpy"):
            want, found = products(updates, v), screen(dirty)
        with by("kernels"):
            for threads in (1, 2):
                to = Destination(threads=threads)
                got = products(updates.onto(to), v)
                for name in ("inner", "squares", "own"):
                    assert np.array_equal(getattr(got, name), getattr(want, name)), name
                assert np.array_equal(screen(dirty.onto(to)), found)
        assert found.any() == refused


def test_judging_one_update_is_its_definition() -> None:
    updates, v, _ = made(3)
    for row in (updates.tile(slice(0, LAYOUT.size))[0], v, -v):
        results = []
        for path in ("numpy", "kernels"):
            update = row.copy()
            with by(path):
                judged = ZenoPlusPlus().decide(
                    update, AsyncContext(layout=LAYOUT, sent=np.ones(len(LAYOUT.blocks), np.bool_), reference=v)
                )
            results.append((update.tobytes(), judged.applied.tolist(), judged.negated.tolist()))
        assert results[0] == results[1]


@pytest.mark.parametrize("rule", [*RULES, Meamed(f=0.2)], ids=lambda rule: repr(rule))
@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n", [1, 3, 17, 40])
def test_what_is_not_finite_is_found(rule: Rule, bad: float, n: int) -> None:
    values = np.ones((n, LAYOUT.size), np.float32)
    reference = np.ones(LAYOUT.size, np.float32)
    with by("kernels"):
        for position in (0, 17 * 31, 3600, LAYOUT.size - 1):
            values[n - 1, position] = bad
            with pytest.raises(NotFiniteError):
                rule.combine(Updates.of(values, LAYOUT).onto(Destination(threads=2)), Context(reference))
            values[n - 1, position] = 1.0
        rule.combine(Updates.of(values, LAYOUT), Context(reference))


def test_a_sum_with_the_base_that_overflows_is_told() -> None:
    top = np.full(LAYOUT.size, np.finfo(np.float32).max, np.float32)
    updates = Updates.of(np.stack([top] * 3), LAYOUT)
    with by("kernels"):
        for rule in (Average(), Median()):
            assert not rule.combine(updates.onto(Destination(top))).finite
            assert rule.combine(updates.onto(Destination(-top))).finite
            assert not rule.combine(updates.onto(Destination(np.full_like(top, np.nan)))).finite


def test_what_is_needed_of_a_network_puts_the_right_values_in_the_middle() -> None:
    rng = np.random.default_rng(0)
    for n in (5, 16, 33, 64):
        middle = range((n - 1) // 2, n // 2 + 1)
        pairs = needed(comparators(n), middle)
        assert len(pairs) < len(comparators(n))
        for classes in (2, 4):
            values = rng.standard_normal((n, 200))
            for first in range(classes):
                values[first::classes].sort(axis=0)
            want = np.sort(values, axis=0)[middle.start : middle.stop]
            for low, high in needed(comparators(n, classes), middle):
                values[[low, high]] = np.minimum(values[low], values[high]), np.maximum(values[low], values[high])
            assert np.array_equal(values[middle.start : middle.stop], want)


COUNT = """
from hpcps.numerics import kernels
assert kernels.ready()
from hpcps.numerics.kernels.compiled import CACHE, compiled, kernels
assert CACHE is not None and len(kernels) > 5
print(compiled())
"""


def python(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), **LIBRARIES, **variables}
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, env=environment, check=False)


@pytest.mark.usefixtures("starts_processes")
def test_what_was_compiled_once_is_loaded_by_every_later_process() -> None:
    assert python("-m", "hpcps.numerics.kernels").returncode == 0
    second = python("-c", COUNT)
    assert (second.returncode, second.stdout, second.stderr) == (0, "0\n", "")
    assert "already compiled" in python("-m", "hpcps.numerics.kernels").stdout


@pytest.mark.usefixtures("starts_processes")
def test_a_user_without_a_home_has_kernels() -> None:
    """In a container, say: neither HOME nor an entry among the users."""
    code = """
import pwd
def nobody(number): raise KeyError(number)
pwd.getpwuid = nobody
from hpcps.numerics import kernels
print(kernels.ready())
"""
    homeless = python("-c", code)
    assert (homeless.returncode, homeless.stdout) == (0, "True\n"), homeless.stderr


@pytest.mark.usefixtures("starts_processes")
def test_rules_do_without_a_compiler() -> None:
    code = """
import sys
sys.modules["numba"] = None
import numpy as np
from hpcps.numerics import kernels
from hpcps.numerics.kernels import pointers
from hpcps.numerics.layout import Layout
from hpcps.rules import Average
from hpcps.numerics.updates import Updates
kernels.SMALLEST = 0
kernels.find_spec = lambda name: {found}
print(Average().combine(Updates.of(np.ones((3, 2), np.float32), Layout.of([("w", (2,))]))).update)
"""
    absent = python("-c", code.format(found="None"))
    assert (absent.returncode, absent.stdout, absent.stderr) == (0, "[1. 1.]\n", "")
    broken = python("-c", code.format(found="True"))
    assert (broken.returncode, broken.stdout) == (0, "[1. 1.]\n")
    assert "RuntimeWarning: rules run without compiled kernels" in broken.stderr


@pytest.mark.usefixtures("starts_processes")
def test_small_updates_load_no_compiler() -> None:
    code = """
import sys
import numpy as np
from hpcps.numerics.layout import Layout
from hpcps.rules import Average
from hpcps.numerics.updates import Updates
Average().combine(Updates.of(np.ones((8, 50_000), np.float32), Layout.of([("w", (50_000,))])))
sys.exit("numba" in sys.modules)
"""
    assert python("-c", code).returncode == 0
