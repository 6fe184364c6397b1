"""The base classes of pre-aggregators."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Literal, get_args

import numpy as np
from pydantic import Field

from hpcps.numerics.blocks import Float64
from hpcps.registry.config import Config
from hpcps.registry.validation import not_among, not_one_of
from hpcps.rules.share import DEFAULT, Tolerance, count

Need = Literal["random"]
"""A value that a pre-aggregator may need in addition to the inner products: the combiner's random generator."""

Compares = Literal["pairs", "norms", "nothing"]


class PreAggregator(Config, ABC):
    """Replaces the updates by weighted sums of them; the subclass's fields are its keys, `kind` is its name."""

    needs: ClassVar[frozenset[Need]] = frozenset()
    """What it needs in addition to the inner products. Calls for parts of a round cannot share random numbers."""

    compares: ClassVar[Compares] = "pairs"
    """The inner products that `weights` uses: those of all pairs, or none but the squared norms; others may be zero.
    One that uses only norms scales the rows: its weights are a diagonal matrix."""

    kind: str

    @property
    def scope(self) -> Literal["block", "vector"]:
        """What one decision is about: all of an update by default."""
        return "vector"

    def byzantine(self, n: int, rule: int | None) -> int:
        """Return f, the number of Byzantine updates to expect among n.

        Args:
            n: the number of updates that the combiner received, before any pre-aggregator.
            rule: the number that the rule after it tolerates; None if it has none.
        """
        return count(DEFAULT, n) if rule is None else rule

    def remaining(self, n: int) -> int:
        """Return the number of rows that result from n rows."""
        return n

    def unable(self, n: int, f: int) -> str:
        """Return why n rows, up to f of them Byzantine, cannot be pre-aggregated; empty if they can."""
        return ""

    bound: ClassVar[tuple[int, int] | None] = None
    """(a, b) if at least a f + b rows are required, see `hpcps.rules.Rule.bound`."""

    def below_bound(self, n: int, f: int) -> str:
        """Return why n rows, up to f of them Byzantine, are fewer than the `bound` requires; empty if they are not."""
        if self.bound is None or n >= self.bound[0] * f + self.bound[1]:
            return ""
        return f"{self.kind} needs at least {self.bound[0]} f + {self.bound[1]} updates, and f = {f} of {n}"

    @abstractmethod
    def weights(self, products: Float64, f: int, random: np.random.Generator | None) -> Float64:
        """Return the weight of each row in each resulting row: `[m, n]`, finite.

        Args:
            products: the inner products of all pairs of rows, `[n, n]`, as far as it `compares`.
            f: the number of Byzantine rows to expect.
            random: the combiner's random generator, if it needs one.
        """

    @classmethod
    def declarations(cls) -> dict[str, object]:
        return {"needs": sorted(cls.needs)}

    @classmethod
    def faults(cls) -> list[str]:
        return not_among(cls, "needs", get_args(Need)) + not_one_of(cls, "compares", get_args(Compares))


class TolerantPreAggregator(PreAggregator, ABC):
    """A pre-aggregator that depends on the number of Byzantine updates."""

    bound: ClassVar[tuple[int, int]] = (2, 1)

    f: Tolerance | None = Field(
        None,
        description="Number of Byzantine updates among those of a combiner, a whole number; or their share, below 0.5, "
        "which is rounded down. Default: that of the rule, or 0.2 if the rule has none.",
    )

    def byzantine(self, n: int, rule: int | None) -> int:
        return super().byzantine(n, rule) if self.f is None else count(self.f, n)


class DecidingPreAggregator(PreAggregator, ABC):
    """A pre-aggregator that can decide on whole updates or on each block apart from the others."""

    per: Literal["vector", "block"] = Field(
        "vector", description="What one decision is about: the whole update, or each block apart from the others."
    )

    @property
    def scope(self) -> Literal["block", "vector"]:
        return self.per
