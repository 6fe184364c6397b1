"""Attacks that are consistent over the rounds: they know what the run's rule made of the updates of the last one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import cos, radians, sin, sqrt
from statistics import NormalDist
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.attacks.base import Need
from hpcps.attacks.copies import unit_vector
from hpcps.attacks.omniscient import AdversaryContext, Omniscient
from hpcps.attacks.shifted_mean import rows_of
from hpcps.numerics.blocks import Float64, rounded
from hpcps.numerics.layout import Vector
from hpcps.registry.config import LARGEST_FACTOR, MOST


class OverRounds(Omniscient, ABC):
    """An attack that knows the combined update c of the last round in which it acted.

    It computes c with the run's rule, from the updates of all workers. Every worker could learn it from the models that
    it gets, but for server optimizers and several combiners, which are not taken into account.
    """

    needs: ClassVar[frozenset[Need]] = frozenset({"honest", "rule"})

    @abstractmethod
    def sent(self, honest: Vector, combined: Float64 | None, context: AdversaryContext) -> Float64:
        """Return the update of all Byzantine participants `[d]`; `combined` is c `[d]`, None in the first round."""

    def craft(self, honest: Vector, own: Vector, context: AdversaryContext) -> Vector:
        rule = context.rule
        assert rule is not None, f"{self.kind} needs the rule"
        before = context.state.get("combined")
        found = rounded(self.sent(honest, None if before is None else before.astype(np.float64), context))
        rows, byzantine = rows_of(honest, context)
        rows[byzantine] = found
        context.state["combined"] = np.asarray(rule(rows), np.float32)
        return found


class Rop(OverRounds):
    """Relocated orthogonal perturbation: the last combined update, moved in a direction at an angle to a reference.

    With m the mean of the honest updates, c the last combined update (m in the first round), the reference
    u = reference c + (1 - reference) m, and p the vector of ones minus its projection on u, all Byzantine workers send
    location c + (1 - location) m + z (sin(angle) p / |p| + cos(angle) u / |u|). After Özfatura, Özfatura, Küpçü and
    Gündüz, "Byzantines can also learn from history: fall of centered clipping in federated learning", IEEE TIFS 2024,
    whose clients send momenta and whose z is a norm.
    """

    kind: Literal["rop"] = "rop"
    z: float = Field(
        1.0, gt=0, le=LARGEST_FACTOR, description="Norm of the perturbation, in units of the norm of the honest mean."
    )
    angle: float = Field(
        90.0,
        ge=0,
        le=360,
        description="Angle to the reference in degrees; 90: orthogonal, 180: opposite.",
    )
    location: float = Field(1.0, ge=0, le=1, description="Share of the last combined update in what is perturbed.")
    reference: float = Field(0.9, ge=0, le=1, description="Share of the last combined update in the reference.")

    def sent(self, honest: Vector, combined: Float64 | None, context: AdversaryContext) -> Float64:
        mean = honest.mean(axis=0, dtype=np.float64)
        last = mean if combined is None else combined
        along = unit_vector(self.reference * last + (1 - self.reference) * mean)
        across = 1.0 - along.sum() * along
        # What rounding leaves of a vector of ones along the reference has no direction.
        across = unit_vector(across) if np.abs(across).max(initial=0.0) > 1e-9 else 0 * across
        turned = sin(radians(self.angle)) * across + cos(radians(self.angle)) * along
        found: Float64 = self.location * last + (1 - self.location) * mean + self.z * _norm(mean) * turned
        return found


class PoisonedFl(OverRounds):
    """PoisonedFL: updates with the same random signs s in every round, so that they do not cancel out over the rounds.

    In the first round it sends zeros. With g the last combined update and k the last update that it sent, it sends
    factor |g| v s, where v is the vector of absolute values of g - k |g| / |k|, divided by its norm. Every `period`
    rounds it counts the coordinates in which the sum of g over these rounds has the sign of s. Random signs exceed a
    number of them with probability `level`; if they are fewer, it multiplies the factor by `shrink`, unless it falls
    below 0.5. It needs honest updates only to compute g. After Xie, Fang and Gong, "Model poisoning attacks to
    federated learning via multi-round consistency", CVPR 2025, arXiv 2404.15611.
    """

    kind: Literal["poisoned_fl"] = "poisoned_fl"
    factor: float = Field(8.0, ge=0.5, le=LARGEST_FACTOR, description="The first factor, in units of |g|.")
    shrink: float = Field(0.7, gt=0, lt=1, description="What the factor is multiplied by after a test that failed.")
    period: int = Field(50, ge=1, le=MOST, description="Number of rounds between two tests.")
    level: float = Field(0.01, gt=0, lt=0.5, description="Probability that random signs pass the test.")

    def sent(self, honest: Vector, combined: Float64 | None, context: AdversaryContext) -> Float64:
        state, size = context.state, honest.shape[1]
        if combined is None:
            state["signs"] = context.random.choice(np.array([-1, 1], np.int8), size)
            state["sent"], state["sum"] = np.zeros(size), np.zeros(size)
            state["factor"], state["rounds"] = np.array(self.factor), np.array(0)
            return np.zeros(size)
        signs, last = state["signs"], state["sent"]
        state["sum"] += combined
        state["rounds"] += 1
        if state["rounds"] % self.period == 0:
            passing = size / 2 + NormalDist().inv_cdf(1 - self.level) * sqrt(size) / 2
            smaller = self.shrink * float(state["factor"])
            if np.count_nonzero(np.sign(state["sum"]) == signs) < passing and smaller >= 0.5:
                state["factor"] = np.array(smaller)
            state["sum"][:] = 0
        length = _norm(combined)
        sizes = unit_vector(np.abs(combined - length * unit_vector(last)))
        found: Float64 = float(state["factor"]) * length * sizes * signs
        state["sent"] = found
        return found


def _norm(vector: Float64) -> float:
    """Return the Euclidean norm; float64 holds the squares of float32 numbers and their sum."""
    return float(np.sqrt(np.square(vector).sum()))
