"""What every rule is: a function of the updates a validator got in one round."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from hpcps.config import Config
from hpcps.layout import Layout, Mask, Vector


@dataclass(frozen=True)
class Combined:
    """What a rule made of n updates.

    Attributes:
        update: the combined update `[d]`, finite.
        accepted: which (update, block) pairs entered it, `[n, B]`; none if the rule gives up for want of updates.
    """

    update: Vector
    accepted: Mask


class Rule(Config, ABC):
    """A rule that decides what enters the model; the subclass's fields are its keys in the experiment file."""

    scores: ClassVar[bool] = False
    """Whether the rule compares updates with the validator's own (then validators train; see `combine`)."""

    @abstractmethod
    def combine(self, updates: Vector, layout: Layout, reference: Vector | None = None) -> Combined:
        """Combine the updates of one round, block by block.

        Args:
            updates: `[n, d]` float32, all finite; a skipped block is zero. n may be 0. Not changed.
            layout: the blocks of the d elements.
            reference: the validator's own update `[d]`, if the rule `scores`.

        Returns:
            The combined update; zero if n is 0.
        """
