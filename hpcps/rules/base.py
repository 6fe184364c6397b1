"""What every rule is: a function of the updates a validator got in one round, or of one update when it comes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

from hpcps.config import Config
from hpcps.layout import Layout, Mask, Vector
from hpcps.rules.combined import Combined
from hpcps.updates import Updates


class Rule(Config, ABC):
    """A rule of synchronous training; the subclass's fields are its keys in the experiment file."""

    mode: ClassVar[Literal["sync", "async"]] = "sync"
    """The `train.mode` that it is for."""

    scores: ClassVar[bool] = False
    """Whether the rule compares updates with the validator's own (then validators train; see `combine`)."""

    checks: ClassVar[bool] = False
    """Whether `combine` finds out by itself that updates are not finite; the others only see updates known to be."""

    @abstractmethod
    def combine(
        self,
        updates: Updates,
        reference: Vector | None = None,
        *,
        base: Vector | None = None,
        out: Vector | None = None,
        threads: int = 1,
    ) -> Combined:
        """Combine the updates of one round, block by block.

        Args:
            updates: n updates of d elements; a skipped block is zero. n may be 0. Not changed. All finite, unless the
                rule `checks` and they are not yet `checked`.
            reference: the validator's own update `[d]`, if the rule `scores`.
            base: what the combined update is added to, once it is rounded: `[d]`; by default nothing.
            out: where the result goes: `[d]`; by default a new array. May be the base, if the updates are `checked`.
            threads: the most threads that may share the work; the result does not depend on them.

        Returns:
            The combined update; zero if n is 0.

        Raises:
            NotFiniteError: the updates are not finite, which nobody knew; `out` holds nothing of meaning.
        """


@dataclass(frozen=True)
class Judged:
    """What a rule made of one update.

    Attributes:
        applied: which blocks enter the model, as they now are: `[B]`.
        turned: which of these the rule turned round, so that they are not what the worker meant: `[B]`.
    """

    applied: Mask
    turned: Mask


class AsyncRule(Config, ABC):
    """A rule of asynchronous training: it decides on one update at a time."""

    mode: ClassVar[Literal["sync", "async"]] = "async"
    scores: ClassVar[bool] = False
    """Whether the rule compares updates with the validator's own (then validators train; see `judge`)."""

    @abstractmethod
    def judge(self, update: Vector, sent: Mask, layout: Layout, reference: Vector | None = None) -> Judged:
        """Decide, block by block, what of an update enters the model, and change it to what is to be added.

        Args:
            update: `[d]` float32, all finite; a skipped block is zero. Changed in place; a block that is not applied
                holds nothing of meaning afterwards.
            sent: which blocks the worker sent, `[B]`; no others are applied.
            layout: the blocks of the d elements.
            reference: the validator's own update `[d]`, if the rule `scores`.
        """

    def weight(self, staleness: int) -> float:
        """Return what an update is multiplied with when it is applied.

        Args:
            staleness: the updates that the model got since the version that this one was made from.
        """
        return 1.0
