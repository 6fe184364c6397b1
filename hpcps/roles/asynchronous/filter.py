"""How one update is filtered: checked for values that are not finite, passed to the rule, and scaled by alpha."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from hpcps.aggregation.outcomes import Tally
from hpcps.aggregation.rule_state import RuleState
from hpcps.numerics.layout import Allocate, Layout, Mask, Vector, private
from hpcps.roles.asynchronous.log import LogEntry
from hpcps.roles.weights import ALIKE, UpdateWeights
from hpcps.rules import AsyncContext, AsyncRule
from hpcps.rules.asynchronous import decide_received


@dataclass(frozen=True)
class FilteredUpdate:
    """The result of a filter.

    Attributes:
        entry: the update.
        applied: the blocks that are applied to the model `[B]`.
        rejected: the sent blocks that are rejected because they are not finite `[B]`.
        tally: the counts.
        rate: its learning rate, multiplied by the same factor as the update.
    """

    entry: LogEntry
    applied: Mask
    rejected: Mask
    tally: Tally
    rate: float


class UpdateFilter:
    """Filters one update after the other.

    Attributes:
        update: the last update as it is applied to the model `[d]`; valid in the applied blocks.
        kept: what the rule keeps from one update to the next.
    """

    def __init__(
        self,
        rule: AsyncRule,
        layout: Layout,
        kept: RuleState,
        allocate: Allocate = private,
        weights: UpdateWeights = ALIKE,
    ) -> None:
        self._rule = rule
        self._weights = weights
        self.kept = kept
        self._layout = layout
        self.update = allocate(layout.size)
        self.update[:] = 0

    def __call__(
        self,
        entry: LogEntry,
        alpha: float,
        reference: Vector | None = None,
        loss: Callable[[Vector], float] | None = None,
    ) -> FilteredUpdate:
        """Filter an update.

        Args:
            entry: a worker's update; it is empty without a mask.
            alpha: the factor that scales the update, beside the weight of its worker.
            reference: the validator's own update `[d]`, if the rule needs it.
            loss: returns the loss of an update on the validator's data, if the rule needs it.
        """
        layout, alpha = self._layout, alpha * self._weights.factor(entry.reader)
        sent = entry.mask if entry.mask is not None else np.zeros(len(layout.blocks), np.bool_)
        payload = self.update[:0] if entry.payload is None or not entry.payload.size else entry.payload
        context = AsyncContext(reference, loss, self.kept.random, self.kept.arrays, layout=layout, sent=sent)
        decision, rejected = decide_received(self._rule, payload, context, self.update)
        sent = sent & ~rejected
        if alpha != 1.0:
            self.update *= np.float32(alpha)
        accepted = int((decision.applied & ~decision.negated).sum())
        tally = Tally(
            received=len(sent),
            sent=int(sent.sum()),
            accepted=accepted,
            accepted_sent=accepted,
            rejected=int(rejected.sum()),
            negated=int(decision.negated.sum()),
        )
        return FilteredUpdate(entry, decision.applied, rejected, tally, entry.rate * alpha)
