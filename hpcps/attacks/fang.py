"""The attacks of Fang et al. against two rules."""

from __future__ import annotations

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.attacks.base import Need
from hpcps.attacks.omniscient import AdversaryContext, Omniscient
from hpcps.numerics.blocks import Float64, mean, rounded
from hpcps.numerics.layout import Vector
from hpcps.numerics.operations import gram, squared_distances
from hpcps.numerics.updates import Updates
from hpcps.registry.config import LARGEST_FACTOR
from hpcps.rules.selection import Neighbours, krum_scores


class FangTrimmedMean(Omniscient):
    """Against the trimmed mean and the median: random values beyond all honest ones, on the side that the mean leaves.

    Per coordinate, where the mean of the honest updates is positive, the values are uniform between their minimum w and
    w / factor, or w * factor if w is negative; where it is negative, between their maximum w and w * factor, or
    w / factor if w is negative; where it is zero, the value is zero. Each Byzantine worker draws values of its own.
    After Fang, Cao, Jia and Gong, "Local model poisoning attacks to Byzantine-robust federated learning", USENIX
    Security 2020, the attack with full knowledge, for models; here it is for updates. The code of studies that follow
    the paper takes the sign of the mean of all workers, before the attack, and values w / u and w * u with uniform u.
    """

    kind: Literal["fang_trimmed_mean"] = "fang_trimmed_mean"
    factor: float = Field(
        2.0, ge=1, le=LARGEST_FACTOR, description="Ratio of the ends of the interval: b of the paper, which takes 2."
    )

    def craft(self, honest: Vector, own: Vector, context: AdversaryContext) -> Vector:
        sign = np.sign(mean(honest, len(honest)))
        edge = np.where(sign > 0, honest.min(axis=0), honest.max(axis=0)).astype(np.float64)
        end = edge * np.where(edge * sign > 0, 1 / self.factor, self.factor)
        found = np.empty_like(own)
        for row in found:
            shares = context.random.random(len(edge), dtype=np.float32)
            row[:] = np.where(sign == 0, 0.0, rounded(edge + (end - edge) * shares))
        return found


class FangKrum(Omniscient):
    """Against Krum: minus lambda times the sign of the honest updates' mean, with a large lambda that Krum chooses.

    The first lambda is an upper bound on those that Krum can choose: sqrt(s / ((n - 2 f - 1) d)) + max |h_i| / sqrt(d),
    where s is the smallest sum of squared distances of an honest update to its n - f - 2 nearest honest ones. It is
    halved until Krum with the true f chooses the f equal updates before every honest one. If that takes a lambda
    below `least`, or there are too few updates for Krum, the Byzantine workers send their own updates. After Fang, Cao,
    Jia and Gong, "Local model poisoning attacks to Byzantine-robust federated learning", USENIX Security 2020, the
    attack with full knowledge, for models; here it is for updates. In the paper, the f updates differ by small noise.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"honest", "own"})

    kind: Literal["fang_krum"] = "fang_krum"
    least: float = Field(
        1e-5, gt=0, le=LARGEST_FACTOR, description="Lambda below which the attack gives up, in parameter units."
    )
    neighbours: Neighbours = Field("n-f-2", description="Number of neighbours that count in Krum.")

    def craft(self, honest: Vector, own: Vector, context: AdversaryContext) -> Vector:
        h, d = honest.shape
        neighbours = h - (2 if self.neighbours == "n-f-2" else 1)
        if neighbours < 1 or d == 0:
            return own
        sign = np.sign(mean(honest, h)).astype(np.float32)
        products = gram(Updates.of(honest, context.layout), sign).sum(axis=0)
        distances = squared_distances(products)[:h, :h]
        squares = np.diagonal(products)[:h]
        nearest = krum_scores(distances, max(1, h - 2)).min()
        size = np.sqrt(nearest / (max(1, context.n - 2 * context.f - 1) * d)) + np.sqrt(squares.max() / d)
        while size > self.least:
            crafted = rounded(-size * sign.astype(np.float64))
            away = squares + 2 * size * products[h, :h] + size * size * products[h, h]
            if _chosen(distances, np.maximum(away, 0.0), len(own), neighbours):
                return crafted
            size /= 2
        return own


def _chosen(distances: Float64, away: Float64, copies: int, neighbours: int) -> bool:
    """Tell whether Krum chooses equal updates before the honest ones.

    Args:
        distances: the squared distances of the honest updates, `[h, h]`.
        away: their squared distances to the equal updates, `[h]`.
        copies: the number of equal updates.
        neighbours: the number of neighbours that count.
    """
    h = len(away)
    every = np.zeros((h + copies, h + copies))
    every[:h, :h] = distances
    every[:h, h:], every[h:, :h] = away[:, None], away
    found = krum_scores(every, neighbours)
    return bool(found[h] < found[:h].min())
