"""The keys of rules that drop extreme values: a share that ZenoPS's rules drop, or the number of Byzantine updates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from pydantic import Field, model_validator

from hpcps.rules.base import Rule
from hpcps.rules.share import DEFAULT, Tolerance

EXCLUSIVE = "f and trim exclude each other: leave one of them out"


class Trimming(Rule, ABC):
    """A rule that drops b of n values per coordinate; `trim` or `f` says how many."""

    bound: ClassVar[tuple[int, int]] = (2, 1)

    trim: float
    f: Tolerance | None = Field(
        None,
        description="Number of Byzantine updates among those of a combiner that the rule tolerates, a whole number; or "
        "their share, below 0.5, which is rounded down. It replaces `trim`: exactly f are dropped.",
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Trimming:
        if self.f is not None and self.trim != DEFAULT:
            raise ValueError(EXCLUSIVE)
        return self

    @abstractmethod
    def trimmed(self, n: int) -> int:
        """Return b for n updates that are enough."""

    def too_few(self, n: int) -> bool:
        """Tell whether the result of n updates is zero."""
        return n <= 2 if self.f is None else n == 0 or bool(self.unable(n))

    def unable(self, n: int) -> str:
        """See `BaseRule.unable`; with `trim`, few updates are only a caution."""
        return "" if self.f is None else self.below_bound(n)

    def tolerated(self, n: int) -> int:
        return self.trimmed(n) if n > 2 or self.f is not None else 0

    def tolerating(self, f: int) -> Trimming:
        """See `Rule.tolerating`; `f` then replaces `trim`."""
        return self.model_copy(update={"f": f})
