"""Rejects blocks that are not finite before a rule uses them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics.blocks import tiles
from hpcps.numerics.kernels import worthwhile
from hpcps.numerics.layout import Mask, Vector
from hpcps.numerics.updates import NotFiniteError, Updates
from hpcps.rules.asynchronous import AsyncRule, Decision
from hpcps.rules.base import Rule
from hpcps.rules.combined import Combined
from hpcps.rules.context import NOTHING, AsyncContext, Context

Values = TypeVar("Values", bound=NDArray[Any])


def screen(updates: Updates, threads: int = 1) -> Mask:
    """Find the used blocks that hold a NaN or an infinity: `[n, B]`; with at most `threads` threads."""
    if worthwhile(updates):
        from hpcps.numerics.kernels import engine

        return engine.screen(updates, threads)
    refused = np.zeros(updates.sent.shape, dtype=np.bool_)
    for tile in tiles(updates.layout, len(updates)):
        good = np.isfinite(updates.tile(tile.columns))
        if not good.all():
            refused[:, tile.blocks] |= tile.any(~good)
    return refused


def finite(values: Values, updates: Updates) -> Values:
    """Return the values, which were computed from updates.

    Raises:
        NotFiniteError: the updates are not `checked`, and the values are not finite.
    """
    if not updates.checked and not np.isfinite(values).all():
        raise NotFiniteError
    return values


def combine(rule: Rule, updates: Updates, context: Context = NOTHING) -> tuple[Combined, Mask]:
    """Reject blocks that are not finite, as if they had been skipped, and combine the others.

    Most rounds have no such blocks. So a rule that `checks` combines the updates first, and again without the rejected
    blocks if it has found any. It cannot do so if it writes over the base.

    Args:
        rule: the rule.
        updates: the updates as they were received.
        context: see `Rule.combine`.

    Returns:
        The result of the rule with what is done before it, and the rejected blocks: `[n, B]`.
    """
    from hpcps.rules.chain import combine_finite, detects, reason_against

    base, out = context.base, context.out
    in_place = base is not None and out is not None and np.may_share_memory(base, out)
    complete = rule.skipped == "zero" or bool(updates.used.all())
    if detects(rule) and complete and not in_place and not reason_against(rule, len(updates), bounds=False):
        with suppress(NotFiniteError), np.errstate(invalid="ignore"):
            return combine_finite(rule, updates, context), np.zeros_like(updates.sent)
    refused = screen(updates, context.threads)
    return combine_finite(rule, updates.without(refused), context), refused


def decide(rule: AsyncRule, payload: Vector, context: AsyncContext, out: Vector) -> tuple[Decision, Mask]:
    """Reject blocks that are not finite, as if they had been skipped, and decide on the others.

    Args:
        rule: the rule.
        payload: the sent blocks of an update, one after another.
        context: see `AsyncRule.decide`; its `sent` are the blocks in the payload.
        out: gets what is added to the model `[d]`; valid in the applied blocks.

    Returns:
        The decision, and the rejected blocks `[B]`.
    """
    updates = Updates(context.layout, [payload], context.sent[None, :])
    refused = screen(updates)
    updates.without(refused).tile(slice(0, context.layout.size), out[None, :])
    return rule.checked_decision(out, replace(context, sent=context.sent & ~refused[0])), refused[0]
