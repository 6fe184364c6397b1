"""The geometric median is the minimum of the sum of distances, from every start and whatever the updates are."""

from collections.abc import Iterator
from unittest.mock import patch

import numpy as np
import pytest

from hpcps.numerics import kernels
from hpcps.numerics.layout import Layout
from hpcps.numerics.updates import Updates
from hpcps.rules import GeometricMedian

STARTS = ("zero", "mean", "median", "lower_median")
NU = GeometricMedian().smoothing
every_start = pytest.mark.parametrize("start", STARTS)


def rows_of(kind: str, random: np.random.Generator) -> np.ndarray:
    """Draw 2 to 17 updates of 1 to 7 elements."""
    n, d = random.integers(2, 18), random.integers(1, 8)
    rows = random.standard_normal((n, d))
    some, tiny = random.integers(1, n), 10.0 ** random.integers(-8, -1)
    if kind == "whole numbers":
        rows = random.integers(-9, 10, (n, d)).astype(float)
    elif kind == "ties":
        rows = random.integers(-1, 2, (n, d)).astype(float)
    elif kind == "nearly a line":
        rows = random.standard_normal((n, 1)) * random.standard_normal(d) + tiny * rows
    elif kind == "nearly a plane":
        rows[:, 2:] *= 1e-4
    elif kind == "zeros":
        rows[:some] = 0
    elif kind == "one near zero":
        rows[0] *= tiny
    elif kind == "several near zero":
        rows[:some] *= tiny
    elif kind == "equal":
        rows[:some] = rows[0]
    elif kind == "all equal":
        rows[:] = rows[0]
    elif kind == "huge":
        rows[: max(1, (n - 1) // 3)] *= 10.0 ** random.integers(3, 30)
    elif kind == "not finite":
        rows[random.integers(n)] = random.choice([np.nan, np.inf])
    return (rows * 10.0 ** random.integers(-2, 4)).astype(np.float32)


KINDS = (
    *("normal", "whole numbers", "ties", "nearly a line", "nearly a plane", "zeros", "one near zero", "equal", "huge"),
    *("several near zero", "all equal", "not finite"),
)


def excess(rows: np.ndarray, shares: np.ndarray) -> float:
    """Return a bound of how far the mean smoothed distance to y is above its minimum, in units of its median.

    The sum is convex, so it is above its minimum by at most the length of its gradient times the distance to the
    minimum. If m > n / 2 rows lie within r of y, so does the minimum within 2 m / (2 m - n) r (Minsker, "Geometric
    median and robust estimation in Banach spaces", Bernoulli 21(4), 2015, lemma 2.1).
    """
    n, exact = len(rows), rows.astype(np.longdouble)
    exact = exact - exact[np.argmax(shares)]
    offsets = shares.astype(np.longdouble) @ exact - exact
    distances = np.sqrt((offsets**2).sum(axis=1))
    gradient = (offsets / np.maximum(distances, NU)[:, None]).mean(axis=0)
    ordered = np.sort(distances)
    away = min(2 * m / (2 * m - n) * ordered[m - 1] for m in range(n // 2 + 1, n + 1))
    norms = np.sort(np.abs(rows.astype(float)).max(axis=1))
    return float(np.sqrt((gradient**2).sum()) * away / max(ordered[n // 2], NU, norms[n // 2] * 1e-3))


@pytest.mark.sample(4)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_minimum_whatever_the_updates_are(kind: str) -> None:
    random = np.random.default_rng(len(kind))
    for number in range(60):
        given = rows_of(kind, random)
        rows = np.where(np.isfinite(given).all(axis=1)[:, None], given, np.float32(0)).astype(float)
        rule, n = GeometricMedian(start=STARTS[number % 4]), len(rows)
        middle = np.median(rows, axis=0) if rule.start == "median" else np.sort(rows, axis=0)[(n - 1) // 2]
        wider = np.vstack((rows, middle)) if "median" in rule.start else rows
        shares = rule.weights(wider @ wider.T, n)[:n]
        assert (shares >= 0).all()
        assert shares.sum() == pytest.approx(1)
        assert excess(rows, shares) <= 1e-6, (number, rows.tolist())
        if kind not in ("nearly a line", "several near zero") and (n % 2 or rows.shape[1] > 1):  # else it is not unique
            near = 2e-6 * np.sort(np.abs(rows).max(axis=1))[n // 2] + 2 * NU
            np.testing.assert_allclose(rule(given), shares @ rows, rtol=2e-6, atol=near)


@every_start
@pytest.mark.parametrize(
    ("rows", "median"),
    [
        ([[0], [2], [2]], [2]),
        ([[np.nan], [2], [2]], [2]),
        ([[1], [-7], [3], [3], [0]], [1]),
        ([[0]] * 10 + [[2]] * 11, [2]),  # Weiszfeld's steps from zero grow by a tenth each
        ([[0, 0], [1, 0], [1, 0.1], [1, -0.1]], [1, 0]),
        ([[1e30], [0], [1], [2], [-1e30]], [1]),
        ([[3e38], [-3e38], [1]], [1]),
        ([[5, 7]], [5, 7]),
        ([[0, 0]], [0, 0]),
        ([[0, 0], [0, 0], [1, 5]], [0, 0]),
        ([[2, 1]] * 4, [2, 1]),
    ],
)
def test_no_start_is_a_trap(start: str, rows: list[list[float]], median: list[float]) -> None:
    found = GeometricMedian(start=start)(np.array(rows, np.float32))
    np.testing.assert_allclose(found, median, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("away", [0.0, 1e-12, *10.0 ** np.arange(-8.0, -1)])
@pytest.mark.parametrize("many", [1, 2, 4])
def test_updates_near_the_start_do_not_hold_it(away: float, many: int) -> None:
    honest = np.random.default_rng(1).standard_normal((9, 6)) * 0.1 + 1
    near = np.random.default_rng(2).standard_normal((many, 6)) * away
    rows = np.vstack((near, honest)).astype(np.float32)
    found = GeometricMedian()(rows)
    np.testing.assert_allclose(found, GeometricMedian(start="median")(rows), rtol=2e-6)
    assert np.abs(found - 1).max() < 0.2


def test_a_huge_update_does_not_end_the_search() -> None:
    honest = np.random.default_rng(1).standard_normal((6, 4)).astype(np.float32)
    far = np.vstack((honest, np.full((1, 4), 1e3))).astype(np.float32)
    for size in (1e9, 1e20, 1e38):
        rows = np.vstack((honest, np.full((1, 4), size))).astype(np.float32)
        for start in STARTS:
            np.testing.assert_allclose(GeometricMedian(start=start)(rows), GeometricMedian()(far), atol=2e-3)


def test_all_updates_have_a_weight() -> None:
    rows = np.array([[0, 0], [0, 0], [0, 0], [1, 2], [3, 1]], np.float32)
    combined = GeometricMedian().combine(Updates.of(rows, Layout.of_sizes((2,), 2)))
    assert combined.accepted.all()


@pytest.mark.parametrize("smoothing", [1e-100, 1e-9, 0.1, 10.0, 1e100])
def test_smoothing_is_the_smallest_distance_that_counts(smoothing: float) -> None:
    random = np.random.default_rng(3)
    for n in (3, 8):
        rows = random.standard_normal((n, 4)).astype(np.float32)
        found = GeometricMedian(smoothing=smoothing)(rows).astype(float)
        weights = 1 / np.maximum(np.sqrt(((rows - found) ** 2).sum(axis=1)), max(smoothing, 1e-6))
        np.testing.assert_allclose(found, weights @ rows / weights.sum(), rtol=1e-4, atol=1e-5)


def plain(rows: np.ndarray, steps: int, nu: float) -> Iterator[np.ndarray]:
    found = np.zeros(rows.shape[1])
    for _ in range(steps):
        weights = 1 / np.maximum(np.sqrt(((rows - found) ** 2).sum(axis=1)), nu)
        found = weights @ rows / weights.sum()
        yield found


def test_without_a_tolerance_its_steps_are_those_of_weiszfeld() -> None:
    rows = np.random.default_rng(4).standard_normal((7, 5)).astype(np.float32)
    for steps, wanted in enumerate(plain(rows.astype(float), 6, 0.1), 1):
        found = GeometricMedian(tolerance=0.0, smoothing=0.1, iterations=steps)(rows)
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-7)
    stuck = GeometricMedian(tolerance=0.0, iterations=10)(np.array([[0], [2], [2]], np.float32))
    np.testing.assert_allclose(stuck, 1e-3, rtol=0.1)


@pytest.mark.skipif(not kernels.installed(), reason="numba is not installed")
@pytest.mark.parametrize("per", ["vector", "block"])
def test_compiled_kernels_give_the_same_bits(per: str) -> None:
    random = np.random.default_rng(6)
    rows = random.standard_normal((9, 70_000), dtype=np.float32)
    rows[2] = 0
    rows[3] *= 1e6
    rule, found = GeometricMedian(per=per), {}
    for here in (False, True):
        with patch("hpcps.numerics.operations.enough", lambda elements, here=here: here and kernels.ready()):
            found[here] = rule(rows, blocks=(40_000, 30_000))
    assert found[False].tobytes() == found[True].tobytes()


@pytest.mark.parametrize("kind", ["normal", "ties", "zeros", "one near zero", "huge", "not finite", "equal"])
def test_tensors_give_the_result_within_rounding(kind: str) -> None:
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(5)
    for _ in range(10):
        rows = rows_of(kind, random)
        if len(rows) % 2 == 0 and rows.shape[1] == 1:
            continue  # all values between two are minima
        wanted = GeometricMedian()(rows)
        found = GeometricMedian()(torch.from_numpy(rows)).numpy()
        size = np.sort(np.abs(np.nan_to_num(rows, posinf=0)).max(axis=1))[len(rows) // 2]
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-6 * size + 1e-7)
