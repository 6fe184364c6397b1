"""Dynamic local updates: numbers of local steps in proportion to the speeds."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor
from typing import Literal

from pydantic import Field

from hpcps.policies.base import Policy, Standing
from hpcps.registry.config import MOST

_ROUNDING = 1e-6
"""Added before rounding down, because measured durations of equal steps differ in their last digits."""


class DyLU(Policy):
    """Every role takes a number of local steps in proportion to its speed.

    With v steps per second, role i takes H_i = max(1, floor(v_i / v_max * most)) steps, so the fastest takes `most`. A
    role asks after its first step, and after the last one. Until all roles have reported a step, it takes one step at a
    time.

    After Liu et al., "Asynchronous local-SGD training for language modeling", 2024, arXiv 2401.09135.
    """

    kind: Literal["dylu"] = "dylu"
    most: int = Field(50, ge=1, le=MOST, description="Local steps of the fastest role in a round, H.")

    def further_steps(self, asker: int, standings: Sequence[Standing], now: float) -> int:
        own = standings[asker]
        known = [standing.c for standing in standings if standing.c is not None]
        share = min(known) / own.c if own.c else 1.0
        left = max(1, floor(share * self.most + _ROUNDING)) - own.k
        return max(0, left if len(known) == len(standings) else min(left, 1))
