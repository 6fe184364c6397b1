"""Plain float64 transcriptions of the attacks that know the honest updates.

They compute distances from differences, and search for a factor where the attack has a closed form.
"""

from collections.abc import Callable, Iterator
from math import fsum, sqrt
from statistics import NormalDist, fmean, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

TOP = float(np.finfo(np.float32).max)
Rows = NDArray[np.float64]
Rule = Callable[[Any], Any]


def mean_of(rows: Rows) -> Rows:
    return np.array([fmean(column) for column in rows.T.tolist()])


def is_below_rounding(mean: float, column: Rows) -> bool:
    """Tell whether a sum in float64 need not have the sign of this mean."""
    return 0 < abs(mean) < 1e-13 * float(np.abs(column).max())


def deviation_of(rows: Rows) -> Rows:
    return np.array([stdev(column) if len(column) > 1 else 0.0 for column in rows.T.tolist()])


def distance(a: Rows, b: Rows) -> float:
    return sqrt(fsum(((a - b) ** 2).tolist()))


def side(attack: Any) -> int:
    return {"-": -1, "+": 1}[attack.sign]


def close(got: Any, want: Rows, size: Rows | float, share: float = 1e-13) -> None:
    """Assert that got is want, limited and rounded to float32, up to a share of the size of what was added."""
    want = np.clip(want, -TOP, TOP)
    assert np.isfinite(got).all()
    room = 1.001 * 2**-24 * np.abs(want) + 1.001 * 2.0**-150 + share * size
    assert (np.abs(got.astype(np.float64) - want) <= room).all(), (got, want)


def ipm(attack: Any, rows: Rows, own: Rows, got: Any) -> None:
    close(got, -attack.epsilon * mean_of(rows), np.abs(rows).sum(axis=0))


def alie(attack: Any, rows: Rows, own: Rows, got: Any) -> None:
    h, f = len(rows), len(own)
    z = attack.z
    if z == "auto":
        share = (h - ((h + f) // 2 + 1 - f)) / h
        z = NormalDist().inv_cdf(min(max(share, 0.5 / h), 1 - 0.5 / h))
    size = np.abs(rows).sum(axis=0)
    close(got, mean_of(rows) + side(attack) * z * deviation_of(rows), size + abs(z) * size)


def sparse(attack: Any, rows: Rows, own: Rows, got: Any) -> None:
    h, f, mean = len(rows), len(own), mean_of(rows)
    z = attack.z
    if z == "auto":
        share = (h - ((h + f) // 2 + 1 - f)) / h
        z = NormalDist().inv_cdf(min(max(share, 0.5 / h), 1 - 0.5 / h))
    order = sorted(range(len(mean)), key=lambda k: -abs(mean[k]))
    number = -(-int(1000 * attack.share) * len(mean) // 1000)
    if number < len(mean) and order and np.diff(np.abs(mean)[order])[number - 1] > -1e-12 * np.abs(rows).max():
        return  # rounding, or the order, decides which of two means is larger
    factors = np.array([attack.scale if k in order[:number] else z for k in range(len(mean))])
    size = np.abs(rows).sum(axis=0)
    close(got, mean + side(attack) * factors * deviation_of(rows), size + np.abs(factors) * size)


def rop(attack: Any, rows: Rows, last: Rows | None) -> Rows:
    mean = mean_of(rows)
    last = mean if last is None else last
    u = attack.reference * last + (1 - attack.reference) * mean
    ones = np.ones(len(mean))
    p = ones - (ones @ u) / (u @ u) * u
    theta = attack.angle * np.pi / 180
    turned = np.sin(theta) * p / np.linalg.norm(p) + np.cos(theta) * u / np.linalg.norm(u)
    return attack.location * last + (1 - attack.location) * mean + attack.z * np.linalg.norm(mean) * turned


def poisoned_fl(attack: Any, signs: Rows, combined: list[Rows]) -> tuple[list[Rows], list[float]]:
    """Return what is sent in each round, and the factors, for the combined updates of these rounds."""
    sent, factors, d = [0 * signs], [attack.factor], len(signs)
    enough = d / 2 + NormalDist(0, sqrt(d) / 2).inv_cdf(1 - attack.level)
    for t in range(1, len(combined)):
        g, k, factor = combined[t - 1], sent[-1], factors[-1]
        if t % attack.period == 0:
            moved = sum(combined[t - attack.period : t])
            aligned = sum(np.sign(a) == b for a, b in zip(moved, signs, strict=True))
            if aligned < enough and factor * attack.shrink >= 0.5:
                factor *= attack.shrink
        rest = g - (k * np.linalg.norm(g) / np.linalg.norm(k) if k.any() else 0)
        sent.append(factor * np.linalg.norm(g) * np.abs(rest) / np.linalg.norm(rest) * signs)
        factors.append(factor)
    return sent, factors


def direction_of(attack: Any, rows: Rows) -> Rows:
    mean = mean_of(rows)
    if attack.direction == "std":
        return -deviation_of(rows)
    if attack.direction == "sign":
        return -np.sign(mean)
    norm = np.abs(mean).max(initial=0.0)
    norm = norm * sqrt(fsum(((mean / norm) ** 2).tolist())) if norm else 0.0
    return -mean / norm if norm else mean


def bounded(within: Callable[[Any, Rows, Rows], bool]) -> Callable[[Any, Rows, Rows, Any], None]:
    """Return the check of an attack that moves the mean as far as a bound allows, found by halving an interval."""

    def check(attack: Any, rows: Rows, own: Rows, got: Any) -> None:
        mean, p = mean_of(rows), direction_of(attack, rows)
        cancelled = (mean != 0) & (np.abs(mean) < 1e-13 * np.abs(rows).max(axis=0, initial=0.0))
        if attack.direction == "sign" and cancelled.any():
            return  # a sum in float64 need not have the sign of the mean
        size = np.abs(p).max(initial=0.0)
        low, high = 0.0, 1e-60
        if size > 0:
            while within(attack, rows, mean + high / size * p):
                low, high = high, 2 * high
            for _ in range(100):
                middle = (low + high) / 2
                low, high = (middle, high) if within(attack, rows, mean + middle / size * p) else (low, middle)
            p = p / size
        # The transcription's own differences to the mean are rounded, as the rows may be far from zero.
        close(got, mean + low * p, 1e-5 * low * np.abs(p) + 1e-13 * np.abs(rows).max(initial=0.0), 1.0)

    return check


def within_diameter(attack: Any, rows: Rows, v: Rows) -> bool:
    diameter = max(distance(a, b) for a in rows for b in rows)
    return max(distance(v, row) for row in rows) <= diameter


def within_sum(attack: Any, rows: Rows, v: Rows) -> bool:
    sums = [fsum(distance(a, b) ** 2 for b in rows) for a in rows]
    return fsum(distance(v, row) ** 2 for row in rows) <= (max if attack.bound == "largest" else min)(sums)


def fang_trimmed_mean(attack: Any, rows: Rows, own: Rows, got: Any, draws: list[Rows]) -> None:
    for row, shares in zip(got, draws, strict=True):
        for j, mean in enumerate(mean_of(rows)):
            column = rows[:, j]
            if is_below_rounding(mean, column):
                continue
            edge = 0.0 if mean == 0 else column.min() if mean > 0 else column.max()
            end = edge * attack.factor if (edge > 0) != (mean > 0) else edge / attack.factor
            close(row[j : j + 1], np.array([edge + (end - edge) * shares[j]]), abs(edge) + abs(end))


def krum_scores(rows: Rows, neighbours: int) -> list[float]:
    squares = [[distance(a, b) ** 2 for b in rows] for a in rows]
    return [fsum(sorted(line[:i] + line[i + 1 :])[:neighbours]) for i, line in enumerate(squares)]


def fang_krum(attack: Any, rows: Rows, own: Rows, got: Any) -> None:
    (h, d), f = rows.shape, len(own)
    neighbours = h - (2 if attack.neighbours == "n-f-2" else 1)
    if neighbours < 1 or d == 0:
        assert np.array_equal(got, own)
        return
    if any(map(is_below_rounding, mean_of(rows), rows.T)):
        return
    sign = np.sign(mean_of(rows))
    bound = sqrt(min(krum_scores(rows, max(1, h - 2))) / (max(1, h + f - 2 * f - 1) * d))
    size = bound + max(distance(row, 0 * row) for row in rows) / sqrt(d)
    while size > attack.least:
        crafted = -size * sign
        scores = krum_scores(np.vstack((rows, [crafted] * f)), neighbours)
        slack = 1e-12 * h * float((rows**2).sum() + (crafted**2).sum())
        margin = min(scores[:h]) - scores[h]
        if got.ndim == 1 and np.abs(got - np.clip(crafted, -TOP, TOP)).max() <= 1e-6 * size:
            assert margin > -slack, "Krum does not choose it"
            return
        assert margin < slack, "Krum chooses a larger one"
        size /= 2
    assert np.array_equal(got, own)


def factors(attack: Any, distance_of: Callable[[float], float]) -> Iterator[tuple[float, float]]:
    """Yield the factors that a search evaluates, and the distances."""
    left, step, best = attack.evaluations, attack.step, attack.start
    reached = distance_of(best)
    left -= 1
    yield best, reached
    x = best
    while left:
        x, left = best + step, left - 1
        found = distance_of(x)
        yield x, found
        if found <= reached:
            step *= attack.shrink
            break
        best, reached, step = x, found, 2 * step
    while left:
        if x < best:
            x += step
        else:
            lower = x - step
            while lower < 0:
                lower = (lower + x) / 2
            x = lower
        left -= 1
        found = distance_of(x)
        yield x, found
        if found > reached:
            best, reached = x, found
        step *= attack.shrink


def searched(attack: Any, rows: Rows, own: Rows, got: Any, rule: Rule) -> None:
    mean = mean_of(rows)
    along = -mean if attack.kind == "searched_ipm" else side(attack) * deviation_of(rows)
    base = 0 * mean if attack.kind == "searched_ipm" else mean

    def crafted(factor: float) -> Any:
        return np.clip(base + factor * along, -TOP, TOP).astype(np.float32)

    def distance_of(factor: float) -> float:
        every = np.vstack((rows.astype(np.float32), [crafted(factor)] * len(own)))
        return distance(rule(every).astype(np.float64), mean)

    tried = list(factors(attack, distance_of))
    assert len(tried) == attack.evaluations
    largest = max(found for _, found in tried)
    # Distances that differ by rounding are equal: any factor that reaches the largest will do.
    winners = [factor for factor, found in tried if found >= largest * (1 - 1e-9)]
    assert any(
        np.allclose(got, crafted(factor), rtol=1e-6, atol=1e-6 * np.abs(rows).max(initial=0)) for factor in winners
    )


def mimic(attack: Any, rows: Rows, own: Rows, got: Any, workers: tuple[int, ...]) -> None:
    later = [k for k, worker in enumerate(workers) if worker >= attack.worker]
    assert np.array_equal(got, rows[later[0] if later else 0])


def top_direction(rows: Rows) -> Rows:
    return np.linalg.svd(rows - rows.mean(axis=0))[2][0]


def mimic_directions(rounds: list[Rows]) -> Iterator[Rows]:
    """Yield the direction after each round."""
    mean, z = rounds[0].mean(axis=0), top_direction(rounds[0])
    yield z
    for t, rows in enumerate(rounds[1:], 1):
        mean = (t * mean + rows.mean(axis=0)) / (t + 1)
        turned = (rows - mean).T @ ((rows - mean) @ z)
        z = (t * z + turned / np.linalg.norm(turned)) / (t + 1)
        z = z / np.linalg.norm(z)
        yield z
