"""The number of Byzantine updates that a rule tolerates."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar

from pydantic import Field

from hpcps.rules.base import Rule
from hpcps.rules.share import DEFAULT, Tolerance, count


class Tolerant(Rule, ABC):
    """A rule that tolerates up to f Byzantine updates among the n of its combiner."""

    bound: ClassVar[tuple[int, int]] = (2, 1)

    f: Tolerance = Field(
        DEFAULT,
        description="Number of Byzantine updates among those of a combiner that the rule tolerates, a whole number; "
        "or their share, below 0.5, which is rounded down.",
    )

    def unable(self, n: int) -> str:
        f = self.byzantine(n)
        return f"{self.kind} needs more than f updates, and f = {f} of {n}" if f >= n else ""

    def byzantine(self, n: int) -> int:
        """Return f for n updates."""
        return count(self.f, n)

    def tolerated(self, n: int) -> int:
        return self.byzantine(n)

    def tolerating(self, f: int) -> Tolerant:
        return self.model_copy(update={"f": f})
