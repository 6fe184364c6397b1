"""Plain float64 transcriptions of the rules that weigh or select whole updates.

They compute distances from differences, not from inner products. A decision is compared exactly where all values are
small whole numbers, and otherwise up to the rounding of the distances.
"""

from collections.abc import Callable
from itertools import combinations
from math import comb
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.cluster import HDBSCAN

Rows = NDArray[np.float64]
Reference = Callable[[Any, Rows, Rows, NDArray[np.bool_], Rows, bool], None]


def f_of(rule: Any, n: int) -> int:
    return rule.f if isinstance(rule.f, int) else int(round(rule.f * 1000) * n // 1000)


def distances_to(rows: Rows, centre: Rows) -> Rows:
    return ((rows - centre) ** 2).sum(axis=1)


def krum_scores(rows: Rows, neighbours: int) -> Rows:
    return np.array([np.sort(np.delete(distances_to(rows, row), k))[:neighbours].sum() for k, row in enumerate(rows)])


def slack_of(rows: Rows, *more: Rows) -> float:
    return 1e-12 * (1 + len(rows)) * float((rows**2).sum() + sum((row**2).sum() for row in more))


def mean_of(rows: Rows, update: Rows) -> None:
    """The update is the mean of the rows, up to rounding."""
    want = rows.mean(axis=0) if len(rows) else np.zeros_like(update)
    near(update, want, rows)


def near(update: Rows, want: Rows, rows: Rows, share: float = 1e-14) -> None:
    size = np.abs(rows).sum(axis=0) if len(rows) else 0.0
    assert (np.abs(update - want) <= 2**-23 * np.abs(want) + 2.0**-149 + share * size).all()


def best(scores: Rows, count: int, accepted: NDArray[np.bool_], slack: float, exact: bool) -> None:
    """The accepted rows are those with the smallest scores; the first of equal ones."""
    assert accepted.sum() == count
    if exact:
        assert set(np.argsort(scores, kind="stable")[:count]) == set(np.flatnonzero(accepted))
    elif count < len(scores):
        assert scores[accepted].max() <= scores[~accepted].min() + slack


def krum(rule: Any, rows: Rows, own: Rows, accepted: Any, update: Rows, exact: bool) -> None:
    n = len(rows)
    neighbours = n - f_of(rule, n) - (2 if rule.neighbours == "n-f-2" else 1)
    count = 1 if rule.kind == "krum" else rule.m or n - f_of(rule, n)
    best(krum_scores(rows, neighbours), count, accepted, slack_of(rows), exact)
    mean_of(rows[accepted], update)


def subsets(badness: Callable[[Rows], float]) -> Reference:
    def check(rule: Any, rows: Rows, own: Rows, accepted: Any, update: Rows, exact: bool) -> None:
        size = len(rows) - f_of(rule, len(rows))
        assert accepted.sum() == size
        if comb(len(rows), size) > 150:
            return  # a transcription of these would take long
        found = {subset: badness(rows[list(subset)]) for subset in combinations(range(len(rows)), size)}
        least = min(found.values())
        chosen = tuple(np.flatnonzero(accepted).tolist())
        if exact and rule.kind == "mda":
            assert chosen == next(subset for subset, value in found.items() if value == least)
        assert found[chosen] <= least + slack_of(rows)
        mean_of(rows[accepted], update)

    return check


def diameter(rows: Rows) -> float:
    return max((float(distances_to(rows, row).max()) for row in rows), default=0.0)


def largest_variance(rows: Rows) -> float:
    return float(np.linalg.svd(rows - rows.mean(axis=0), compute_uv=False)[0] ** 2) if rows.size else 0.0


def cge(rule: Any, rows: Rows, own: Rows, accepted: Any, update: Rows, exact: bool) -> None:
    best((rows**2).sum(axis=1), len(rows) - f_of(rule, len(rows)), accepted, slack_of(rows), exact)
    mean_of(rows[accepted], update)


def monna(rule: Any, rows: Rows, own: Rows, accepted: Any, update: Rows, exact: bool) -> None:
    best(distances_to(rows, own), len(rows) - f_of(rule, len(rows)), accepted, slack_of(rows, own), exact)
    mean_of(np.vstack((rows[accepted], own)), update)


def aksel(rule: Any, rows: Rows, own: Rows, accepted: Any, update: Rows, exact: bool) -> None:
    n = len(rows)
    count = (n + 1) // 2 if rule.keep == "half" else n - f_of(rule, n)
    centre = np.median(rows, axis=0).astype(np.float32).astype(np.float64)
    best(distances_to(rows, centre), count, accepted, slack_of(rows, centre), exact)
    mean_of(rows[accepted], update)


def bulyan(rule: Any, rows: Rows, own: Rows, accepted: Any, update: Rows, exact: bool) -> None:
    n, f = len(rows), f_of(rule, len(rows))
    if exact:
        left, chosen = list(range(n)), []
        while len(chosen) < n - 2 * f:
            scores = krum_scores(rows[left], min(max(1, len(left) - f - 2), len(left) - 1))
            chosen.append(left.pop(int(np.argmin(scores))))
        assert set(chosen) == set(np.flatnonzero(accepted))
    assert accepted.sum() == n - 2 * f
    around_median(rows[accepted], n - 4 * f, update)


def around_median(rows: Rows, keep: int, update: Rows, middle: str = "mean") -> None:
    for column, got in zip(rows.T, update, strict=True):
        values = np.sort(column)
        median = np.median(values) if middle == "mean" else values[(len(values) - 1) // 2]
        away = np.abs(values - median)
        windows = [values[k : k + keep] for k in range(len(values) - keep + 1)]
        worst = [max(away[k], away[k + keep - 1]) for k in range(len(windows))]
        slack = 1e-13 * np.abs(values).sum()
        means = [window.mean() for window, far in zip(windows, worst, strict=True) if far <= min(worst) + slack]
        room = 2**-23 * max(map(abs, means)) + 2.0**-149 + 1e-14 * np.abs(values).sum()
        assert min(means) - room <= got <= max(means) + room


def meamed(rule: Any, rows: Rows, own: Rows, accepted: Any, update: Rows, exact: bool) -> None:
    assert accepted.all()
    around_median(rows, len(rows) - f_of(rule, len(rows)), update, rule.middle)


def geometric_median(rule: Any, rows: Rows, own: Rows, accepted: Any, update: Rows, exact: bool) -> None:
    starts = {"zero": np.zeros(rows.shape[1]), "mean": rows.mean(axis=0), "median": np.median(rows, axis=0)}
    found = {**starts, "lower_median": np.sort(rows, axis=0)[(len(rows) - 1) // 2]}[rule.start]
    if rule.tolerance and rule.iterations < 8:
        return  # these steps may not reach the minimum
    if rule.tolerance:  # no start and no row is better than the minimum, and no number of Weiszfeld's steps from them
        starts = [*starts.values(), *rows]
        found = min(starts, key=lambda row: np.sqrt(distances_to(rows, row)).sum())
    for _ in range(200 if rule.tolerance else rule.iterations):
        weights = 1 / np.maximum(np.sqrt(distances_to(rows, found)), rule.smoothing)
        found = (weights[:, None] * rows).sum(axis=0) / weights.sum()
    # A row that is nearly the result itself gets a weight that rounding decides: the sum of distances is compared.
    got, want = (np.sqrt(distances_to(rows, z)).sum() for z in (update, found))
    assert got <= want * (1 + 1e-5) + 1e-6 * np.sqrt((rows**2).sum(axis=1)).max(initial=0.0) + 1e-6


def norm_clipping(rule: Any, rows: Rows, own: Rows, accepted: Any, update: Rows, exact: bool) -> None:
    norms = np.sqrt((rows**2).sum(axis=1))
    scaled = rows * np.minimum(1, rule.radius / np.maximum(norms, 1e-300))[:, None]
    near(update, scaled.mean(axis=0), scaled, 1e-12)


def centered_clipping(rule: Any, rows: Rows, own: Rows, accepted: Any, update: Rows, exact: bool) -> None:
    v = np.zeros(rows.shape[1])
    for _ in range(rule.iterations):
        away = rows - v
        norms = np.sqrt((away**2).sum(axis=1))
        v = v + (np.minimum(1, rule.radius / np.maximum(norms, 1e-300))[:, None] * away).mean(axis=0)
    assert (np.abs(update - v) <= 1e-6 * (np.abs(v) + np.abs(v).max(initial=0.0)) + 2.0**-149).all()


def fltrust(rule: Any, rows: Rows, own: Rows, accepted: Any, update: Rows, exact: bool) -> None:
    norms, norm = np.sqrt((rows**2).sum(axis=1)), np.sqrt((own**2).sum())
    trust = np.zeros(len(rows))
    for k, row in enumerate(rows):
        if norms[k] and norm:
            trust[k] = max(0.0, (row / norms[k] * (own / norm)).sum())
    want = np.zeros(rows.shape[1])
    for k, row in enumerate(rows):
        if trust[k]:
            want += trust[k] / trust.sum() * (row / norms[k]) * norm
    if trust.sum() > 1e-9 or trust.sum() == 0:  # between these, rounding decides on who is trusted
        assert (np.abs(update - want) <= 1e-5 * norm + 2.0**-149).all()


def caf(rule: Any, rows: Rows, own: Rows, accepted: Any, update: Rows, exact: bool) -> None:
    n, f = len(rows), f_of(rule, len(rows))
    c, best_value, want = np.ones(n), np.inf, rows.mean(axis=0)
    while rows.size and f and c.sum() > n - 2 * f:
        share = c / c.sum()
        mean = (share[:, None] * rows).sum(axis=0)
        _, values, directions = np.linalg.svd(np.sqrt(share)[:, None] * (rows - mean), full_matrices=False)
        if len(values) > 1 and values[0] - values[1] <= 1e-6 * values[0]:
            return  # there is no single direction of most variance
        if values[0] ** 2 < best_value * (1 - 1e-9):
            best_value, want = values[0] ** 2, mean
        scores = ((rows - mean) @ directions[0]) ** 2
        most = scores.max() if rule.largest == "all" else scores[c > 0].max()
        if not most > 1e-20 * (rows**2).sum():
            break
        c = np.where(scores >= most, 0.0, c * (1 - scores / most))
    assert (np.abs(update - want) <= 1e-4 * np.abs(rows).max(initial=0.0) + 2.0**-149).all()


def dnc(rule: Any, rows: Rows, own: Rows, accepted: Any, update: Rows, exact: bool) -> None:
    # With more coordinates than there are, every iteration looks at all of them.
    if not rows.size:
        return
    centred, f = rows - rows.mean(axis=0), f_of(rule, len(rows))
    directions = np.linalg.svd(centred, full_matrices=False)
    if len(directions[1]) > 1 and directions[1][0] - directions[1][1] <= 1e-6 * directions[1][0]:
        return
    best((centred @ directions[2][0]) ** 2, len(rows) - f, accepted, slack_of(rows), False)
    mean_of(rows[accepted], update)


def sign_majority(rule: Any, rows: Rows, own: Rows, accepted: Any, update: Rows, exact: bool) -> None:
    assert accepted.all()
    assert (update == np.sign(np.sign(rows).sum(axis=0)) * np.float32(rule.step)).all()


def rlr(rule: Any, rows: Rows, own: Rows, accepted: Any, update: Rows, exact: bool) -> None:
    assert accepted.all()
    near(update, np.where(np.abs(np.sign(rows).sum(axis=0)) < rule.threshold, -1, 1) * rows.mean(axis=0), rows)


def loss_of(vector: Rows, target: Rows) -> float:
    """The loss in these tests: the distance of the vector to a target."""
    return float(np.abs(vector.astype(np.float64) - target).max(initial=0.0))


def loss_score(rule: Any, rows: Rows, own: Rows, accepted: Any, update: Rows, exact: bool) -> None:
    before = loss_of(np.zeros(rows.shape[1]), own)
    scaled = (rule.scale * rows).astype(np.float32)
    unit = before if rule.normalise and before else 1.0
    scores = np.array([(before - loss_of(row, own)) / unit for row in scaled]) - rule.rho * (rows**2).sum(axis=1)
    slack = 1e-12 * (np.abs(scores).max(initial=0.0) + before / unit + rule.rho * (rows**2).sum())
    if rule.keep == "n-f":
        best(-scores, len(rows) - f_of(rule, len(rows)), accepted, slack, False)
    else:
        assert (accepted >= (scores > slack)).all()
        assert (accepted <= (scores > -slack)).all()
    mean_of(rows[accepted], update)


def mean_shift(points: Rows) -> list[int]:
    """Return the cluster of each point."""

    def distance(a: Rows, b: Rows) -> float:
        return float(np.sqrt(((a - b) ** 2).sum()))

    n = len(points)
    others = [sorted(distance(a, b) for b in points) for a in points]
    bandwidth = sum(line[n // 2] for line in others) / n * (1 + 1e-9)
    modes = []
    for point in points:
        while True:
            within = [other for other in points if distance(point, other) <= bandwidth]
            mean = np.array(within).mean(axis=0) if within else point
            if np.abs(mean - point).max(initial=0.0) <= 1e-13:
                break
            point = mean
        modes.append((sum(distance(point, other) <= bandwidth for other in points), point))
    remaining: list[Rows] = []
    for _, mode in sorted(modes, key=lambda pair: -pair[0]):
        if all(distance(mode, other) > bandwidth for other in remaining):
            remaining.append(mode)
    return [min(range(len(remaining)), key=lambda k: distance(point, remaining[k])) for point in points]


def scaled_to_median(rows: Rows) -> tuple[Rows, Rows, float]:
    """Return the norms, the rows scaled down to the median norm, and this norm."""
    norms = np.sqrt((rows**2).sum(axis=1))
    most = float(np.median(norms))
    return (
        norms,
        np.array([row * (most / norm if norm > most else 1.0) for row, norm in zip(rows, norms, strict=True)]),
        most,
    )


def signguard(rule: Any, rows: Rows, own: Rows, accepted: Any, update: Rows, exact: bool) -> None:
    d = rows.shape[1]
    norms, scaled, most = scaled_to_median(rows)
    shares = np.array([[(row > 0).sum(), (row == 0).sum(), (row < 0).sum()] for row in rows]) / max(d, 1)
    labels = mean_shift(shares)
    largest = max(labels, key=labels.count)  # of equal ones, the first update's
    for k, norm in enumerate(norms):
        ordinary = rule.low * most <= norm <= rule.high * most
        edge = min(abs(norm - rule.low * most), abs(norm - rule.high * most)) <= 1e-12 * most
        assert accepted[k] == (ordinary and labels[k] == largest) or edge
    near(update, scaled[accepted].mean(axis=0) if accepted.any() else np.zeros(d), scaled, 1e-12)


def flame(rule: Any, rows: Rows, own: Rows, accepted: Any, update: Rows, exact: bool) -> None:
    n, d = rows.shape
    norms, scaled, most = scaled_to_median(rows)
    away = np.ones((n, n))
    for i in range(n):
        for j in range(n):
            if norms[i] and norms[j]:
                away[i, j] = ((rows[i] / norms[i] - rows[j] / norms[j]) ** 2).sum() / 2
    np.fill_diagonal(away, 0.0)
    gaps = np.diff(np.sort(away[np.triu_indices(n, 1)]))
    if n > 1 and gaps.min(initial=1.0) > 1e-9:  # otherwise rounding decides which of two updates is nearer
        labels = HDBSCAN(
            metric="precomputed", min_cluster_size=n // 2 + 1, min_samples=1, allow_single_cluster=True, copy=True
        ).fit_predict(away)
        largest = max(range(n), key=lambda label: (labels == label).sum())
        assert np.array_equal(accepted, labels == largest)
    want = scaled[accepted].mean(axis=0) if accepted.any() else np.zeros(d)
    noise = rule.noise * most * np.random.default_rng(0).standard_normal(d, dtype=np.float32).astype(np.float64)
    near(update, want + noise * accepted.any(), np.vstack((scaled, noise)), 1e-12)


def lasa_measures(rule: Any, rows: Rows, blocks: list[slice]) -> tuple[Rows, Rows]:
    """Return the norm and the mean sign of each row in each block `[B, n, 2]`, and the scaled rows."""
    _, scaled, _ = scaled_to_median(rows)
    keep, found = int((1 - rule.sparsity) * rows.shape[1]), np.zeros((len(blocks), len(rows), 2))
    for k, (row, short) in enumerate(zip(rows, scaled, strict=True)):
        sparse = np.zeros_like(row)
        for place in np.argsort(-np.abs(row), kind="stable")[:keep]:
            sparse[place] = short[place]
        for index, block in enumerate(blocks):
            signs = np.sign(sparse[block][sparse[block] != 0])
            found[index, k] = np.sqrt((sparse[block] ** 2).sum()), signs.mean() if len(signs) else 0.0
    return found, scaled


def lasa_ordinary(rule: Any, measures: Rows) -> tuple[NDArray[np.bool_], bool]:
    """Return which rows are ordinary, and whether rounding cannot change that."""
    ordinary, sure = np.ones(len(measures), np.bool_), True
    for values, bound in zip(measures.T, (rule.norm_bound, rule.sign_bound), strict=True):
        away, room = np.abs(values - np.median(values)), bound * values.std()
        slack = 1e-12 * (np.abs(values).max() + room)
        sure = sure and bool(((np.abs(away - room) > slack) & ((away == 0) | (away > slack))).all())
        ordinary &= (away < room) | (away == 0)
    return (ordinary if ordinary.any() else ~ordinary), sure


def foolsgold(rule: Any, rows: Rows, own: Rows, accepted: Any, update: Rows, exact: bool) -> None:
    """In the first round, in which the histories are the updates."""
    n, norms = len(rows), np.sqrt((rows**2).sum(axis=1))
    want = foolsgold_weights(rule, rows)
    if want is None:
        return
    assert accepted[want > 1e-9].all()
    assert not accepted[(norms == 0) & (n > 0)].any()
    mean = (want[:, None] * rows).sum(axis=0) / want.sum() if want.sum() else np.zeros(rows.shape[1])
    if want.sum() > 1e-6 or not want.any():
        assert (np.abs(update - mean) <= 1e-5 * np.abs(rows).max(initial=0.0) + 2.0**-149).all()


def foolsgold_weights(rule: Any, history: Rows) -> Rows | None:
    """Return the weights; None where rounding decides on them, as between equal directions."""
    n, norms = len(history), [float(np.sqrt((row**2).sum())) for row in history]
    cosines = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            if norms[i] and norms[j]:
                cosines[i, j] = (history[i] / norms[i]) @ (history[j] / norms[j])
    most = [max((cosines[i, j] for j in range(n) if j != i), default=-1.0) for i in range(n)]
    weights = np.zeros(n)
    for i in range(n):
        pardoned = [-1.0]
        for j in range(n):
            if j != i:
                behind = most[j] > 0 and most[i] < most[j]
                pardoned.append(cosines[i, j] * max(most[i], 0.0) / most[j] if behind else cosines[i, j])
        weights[i] = min(max(1 - max(pardoned), 0.0), 1.0) if norms[i] else 0.0
    if n > 1 and 0 < weights.max() < 1e-6:
        return None
    if weights.any():
        shares = np.minimum(weights / weights.max(), 0.99)
        logits = [np.log(share / (1 - share)) + 0.5 if share else -1.0 for share in shares]
        weights = np.clip(rule.confidence * np.array(logits), 0.0, 1.0)
    return weights


TRANSCRIPTIONS: dict[str, Reference] = {
    "krum": krum,
    "multi_krum": krum,
    "bulyan": bulyan,
    "mda": subsets(diameter),
    "smea": subsets(largest_variance),
    "cge": cge,
    "monna": monna,
    "aksel": aksel,
    "meamed": meamed,
    "geometric_median": geometric_median,
    "norm_clipping": norm_clipping,
    "centered_clipping": centered_clipping,
    "fltrust": fltrust,
    "caf": caf,
    "dnc": dnc,
    "sign_majority": sign_majority,
    "rlr": rlr,
    "loss_score": loss_score,
    "signguard": signguard,
    "flame": flame,
    "foolsgold": foolsgold,
}
