"""A stage in which a combiner handles its updates, a pre-aggregator or the rule, and how many updates it needs."""

from __future__ import annotations

from abc import ABC
from typing import ClassVar

import numpy as np

from hpcps.numerics.blocks import Float64
from hpcps.registry.config import Config


class Weighable(Config, ABC):
    """A component that can let some updates count more than others; see `validation.weights`."""

    weighted: ClassVar[bool] = False
    """Whether it takes weights of updates. A run with weights refuses a rule or pre-aggregator that does not."""

    unweighted: ClassVar[str] = "it does not declare weighted = True"
    """Why it takes no weights, for the message that refuses it."""

    kind: str

    def refused_weights(self) -> str:
        """Return why it, or a part of it, takes no weights; empty if it does."""
        return "" if self.weighted else f"{self.kind} takes no weights: {self.unweighted}"


def prior_weights(prior: Float64 | None, n: int) -> Float64:
    """Return how much each of n updates counts, with the sum n: `[n]`; 1 by default."""
    return np.ones(n) if prior is None else prior


class CombiningStage(Weighable, ABC):
    """A pre-aggregator or a rule: it takes n updates, up to f of which may be Byzantine."""

    bound: ClassVar[tuple[int, int] | None] = None
    """(a, b) of a stage whose guarantees are published for a f + b updates or more. `hpcps check` and `rule(X)` refuse
    fewer; a round in which fewer came is recorded, and they are combined if they are at least `fewest`."""

    def fewest(self, f: int) -> int:
        """Return the smallest number of updates that the stage can combine if f of them may be Byzantine.

        The result of fewer, and of none, is zero, and no update is accepted; the stage is not called. `hpcps check` and
        `rule(X)` refuse fewer.
        """
        return 0


def too_few(stage: CombiningStage, n: int, f: int) -> str:
    """Return that n updates are fewer than `fewest`; empty if they are not."""
    fewest = stage.fewest(f)
    return f"{stage.kind} needs at least {fewest} updates, and f = {f} of {n}" if n < fewest else ""


def below_bound(stage: CombiningStage, n: int, f: int) -> str:
    """Return that n updates are fewer than the `bound` requires; empty if they are not."""
    if stage.bound is None:
        return ""
    a, b = stage.bound
    return f"{stage.kind} needs at least {a} f + {b} updates, and f = {f} of {n}" if n < a * f + b else ""
