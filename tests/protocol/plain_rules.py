"""The attacks and rules of ZenoPS on single blocks, as its description defines them."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from hpcps.spec.schema import Run

Array = NDArray[np.float32]


def attack(run: Run, update: Array, noise: np.random.Generator, change: Array | None = None) -> Array:
    """Return what is sent instead of the update of a block; `change`: what the model last gained there."""
    keys, kind = run.attack, run.attack.kind
    if kind in ("zero", "nan", "infinite"):
        return np.full_like(update, {"zero": 0, "nan": np.nan, "infinite": np.inf}[kind])
    if kind == "sign_flip":
        return -update
    if kind in ("label_flip", "late"):  # what came of the training is sent as it is
        return update
    if kind == "drop":
        return np.where(noise.random(update.size, dtype=np.float32).reshape(update.shape) < keys.share, 0, update)
    if kind == "free_rider" and keys.sends == "change":
        return change
    scale = np.float32(getattr(keys, "scale", 1))
    if kind == "negative":
        return -scale * update
    g = noise.standard_normal(update.size, dtype=np.float32).reshape(update.shape)
    if kind == "gaussian" and keys.around == "own":
        return update + scale * update.std() * g
    if kind in ("random", "gaussian"):
        return scale * g
    return scale * np.linalg.norm(change if kind == "free_rider" else update) / np.linalg.norm(g) * g


def combine(run: Run, updates: list[Array], own: Array | None) -> tuple[Array, list[bool]]:
    """Combine what came of one block, zeros for what was left out: (the combined update, which were accepted).

    Args:
        run: gives the rule.
        updates: of the participating workers, in their order.
        own: v, the validator's own update; only `zeno` asks for it.
    """
    rule, n = run.validation.rule, len(updates)
    if n == 0:
        return np.zeros(0, np.float32), []
    everything = [True] * n
    if rule.kind == "average":
        return mean(updates), everything
    if rule.kind == "zeno":
        assert own is not None
        good = [bool(np.isfinite(own).all()) and zeno_accepts(u, own, rule.rho, rule.epsilon) for u in updates]
        passed = [u for u, accepted in zip(updates, good, strict=True) if accepted]
        return (mean(passed) if passed else np.zeros_like(own)), good
    if rule.kind == "median":
        return np.median(np.asarray(updates, np.float64), axis=0).astype(np.float32), everything
    if n <= 2:
        return np.zeros_like(updates[0]), [False] * n
    columns = np.sort(np.stack(updates), axis=0)  # per coordinate, smallest first
    if rule.kind == "trimmed_mean":
        b = int(min((n - 2) // 2, 0.2 * n))
        return mean(columns[b : n - b]), everything
    assert rule.kind == "phocas"
    b = int(max(1, 0.2 * n))
    columns = columns.astype(np.float64)
    centre = sum(columns[b : n - b]) / (n - 2 * b)
    nearest = np.argsort(np.abs(columns - centre), axis=0, kind="stable")[: n - b]
    return mean(np.take_along_axis(columns, nearest, axis=0)), everything


def mean(rows: Iterable[Array]) -> Array:
    """Return the mean of float32 rows: their sum in float64 in the order given, divided, rounded once."""
    rows = list(rows)
    total = np.zeros(rows[0].shape)
    for row in rows:
        total += row
    return (total / len(rows)).astype(np.float32)


def zeno_accepts(u: Array, v: Array, rho: float, epsilon: float) -> bool:
    u, v = u.astype(np.float64), v.astype(np.float64)  # float32 cannot hold the squares of large updates
    uv, uu, vv = (u * v).sum(), (u * u).sum(), (v * v).sum()
    return bool(uv > rho * vv and uu < (1 + epsilon) * vv)
