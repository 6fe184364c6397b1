"""The number of Byzantine updates that a rule tolerates."""

from __future__ import annotations

from abc import ABC
from decimal import Decimal
from typing import Annotated

from pydantic import Field

from hpcps.registry.config import MOST_ROLES
from hpcps.rules.base import Rule


class Tolerant(Rule, ABC):
    """A rule that tolerates up to f Byzantine updates among the n of its combiner."""

    f: Annotated[int, Field(ge=0, le=MOST_ROLES)] | Annotated[float, Field(ge=0, lt=0.5)] = Field(
        0.2,
        description="Number of Byzantine updates among those of a combiner that the rule tolerates, a whole number; "
        "or their share, below 0.5, which is rounded down.",
    )

    def byzantine(self, n: int) -> int:
        """Return f for n updates."""
        if isinstance(self.f, int):
            return self.f
        return int(Decimal(repr(self.f)) * n)  # in binary floating point 0.29 * 100 is less than 29
