"""The base class of rules of asynchronous training, which decide on one update at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from hpcps.numerics.arrays import as_numpy, like
from hpcps.numerics.layout import Layout, Mask, Vector
from hpcps.registry.failures import described, returned, told
from hpcps.rules.base import BaseRule
from hpcps.rules.context import AsyncContext, Needs
from hpcps.rules.on_device import DeviceDecider, applies, supported

Backup = Literal["pulled", "previous"]
"""Weights that a rule compares the model with: those that the update's worker pulled last, or those before the last
update of the block."""


@dataclass(frozen=True)
class Decision:
    """The decision of a rule on one update.

    Attributes:
        applied: the blocks that are added to the model, as the rule has changed them: `[B]`.
        negated: the applied blocks whose sign the rule flipped: `[B]`.
    """

    applied: Mask
    negated: Mask

    @staticmethod
    def accept(blocks: Mask) -> Decision:
        """Return the decision to apply these blocks unchanged."""
        return Decision(blocks.copy(), np.zeros_like(blocks))


class AsyncRule(BaseRule, ABC):
    """A rule of asynchronous training: it decides on one update at a time."""

    mode: ClassVar[Literal["sync", "async"]] = "async"

    @abstractmethod
    def decide(self, update: Vector, context: AsyncContext) -> Decision:
        """Decide which blocks of an update are applied, and change the update in place to what is added to the model.

        Args:
            update: `[d]` float32, all finite; a skipped block is zero. Afterwards the content of a block that is not
                applied is undefined.
            context: the blocks, which of them were sent, and what the rule needs.
        """

    def device_kernel(self) -> DeviceDecider | None:
        """Return how the rule decides on an update in device memory; None, the default, if only the host can."""
        return None

    def checked_decision(self, update: Vector, context: AsyncContext) -> Decision:
        """Call `decide`, and check what it returns.

        Raises:
            SpecError: `decide` failed or returned something else; the message names the rule, its file and the line.
        """
        with told(self, "its decide() failed"):
            decision = self.decide(update, context)
        if isinstance(decision, Decision):
            wanted = described(context.sent)
            masks = {"applied": described(decision.applied), "negated": described(decision.negated)}
            wrong = [
                f"a Decision whose {name} is {mask}: it must be {wanted}"
                for name, mask in masks.items()
                if mask != wanted
            ]
        else:
            wrong = [f"{described(decision)}: it must return a hpcps.rules.Decision"]
        if wrong:
            raise returned(self, "decide", "; ".join(wrong))
        return decision

    def __call__(
        self, update: Any, *, blocks: Sequence[int] | None = None, reference: Any = None, context: Needs | None = None
    ) -> Any:
        """Decide on an update outside of a run, such as in a notebook: `ZenoPlusPlus()(x, reference=v)`.

        Args:
            update: `[d]`, a numpy array or a torch tensor of any floating type and device; blocks that are not finite
                are not applied.
            blocks: the sizes of the blocks of the d elements; by default they are one block.
            reference: `[d]`, the validator's own update, for rules that need it.
            context: everything else that the rule needs; `reference` replaces the one in it.

        Returns:
            What the rule adds to the model `[d]`, of the same type and on the same device; a block that is not applied
            is zero.

        Raises:
            ValueError: an array has the wrong shape, or something that the rule needs is missing.
        """
        if supported(update, 1, context) and applies(self) and (kernel := self.device_kernel()) is not None:
            return self._on_device(kernel, update, blocks, reference, context)
        values = as_numpy(update, 1, "update").copy()
        layout = Layout.of_sizes((values.size,) if blocks is None else blocks, values.size)
        given = context or Needs()
        own = given.reference if reference is None else self._reference(reference, layout)
        sent = np.array([np.isfinite(values[block.offset : block.stop]).all() for block in layout.blocks], np.bool_)
        values[~layout.spread(sent)] = 0
        full = AsyncContext(
            reference=own, loss=given.loss, random=given.random, state=given.state, layout=layout, sent=sent
        )
        self._check_needs(full)
        decision = self.checked_decision(values, full)
        return like(update, np.where(layout.spread(decision.applied & sent), values, np.float32(0)))

    def weight(self, staleness: int) -> float:
        """Return the factor by which an update is multiplied when it is applied.

        Args:
            staleness: the number of updates that were applied since the model version from which this one was computed.
        """
        return 1.0

    @property
    def compares_with(self) -> Backup | None:
        """The weights that the servers keep for `compensate`; None, the default, if the rule has no `compensate`."""
        return None

    def compensate(self, update: Vector, drift: Vector, rate: float) -> Vector:
        """Return what a server adds to the model in place of a part of an update of one local step of plain SGD.

        Args:
            update: `[m]` float32, multiplied by alpha; it must not be changed.
            drift: the model, less the weights that `compares_with` selects, `[m]` float32.
            rate: the learning rate of the update's local step, multiplied by alpha.
        """
        return update
