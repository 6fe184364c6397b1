"""Rejects blocks that are not finite before a rule uses them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from hpcps.numerics import arrays
from hpcps.numerics.destination import Combined, Destination, NotFiniteError
from hpcps.numerics.layout import Layout, Mask, Vector
from hpcps.numerics.operations import screen
from hpcps.numerics.updates import Updates
from hpcps.numerics.vectors import DeviceVector, to_device
from hpcps.rules.asynchronous import AsyncRule, Decision
from hpcps.rules.base import Rule
from hpcps.rules.context import NO_CONTEXT, AsyncContext, Context

T = TypeVar("T")


def combine(rule: Rule, updates: Updates, context: Context = NO_CONTEXT) -> tuple[Combined, Mask]:
    """Reject blocks that are not finite, as if they had been skipped, and combine the others.

    Most rounds have no such blocks. So a rule that detects them itself (`Rule.checks`) combines the updates first, and
    again without the rejected blocks if it has found any. It cannot do so if it writes over the base.

    Args:
        rule: the rule.
        updates: the updates as they were received.
        context: see `Rule.combine`.

    Returns:
        The result of the rule with what is done before it, and the rejected blocks: `[n, B]`.
    """
    from hpcps.rules.chain import combine_finite, detects, reason_against

    base, out = updates.to.base, updates.to.out
    in_place = base is not None and out is not None and arrays.overlap(base, out)
    complete = rule.skipped == "zero" or bool(updates.used.all())
    if detects(rule) and complete and not in_place and not reason_against(rule, len(updates), bounds=False):
        with suppress(NotFiniteError), np.errstate(invalid="ignore"):
            return combine_finite(rule, updates, context), np.zeros_like(updates.sent)
    refused = screen(updates)
    return combine_finite(rule, updates.without(refused), context), refused


def combine_received(
    rule: Rule, layout: Layout, payloads: Sequence[Vector], sent: Mask, context: Context, to: Destination
) -> tuple[Combined, Mask]:
    """Do what `combine` does with payloads as a role has received them: on the host, or in the queue of a device.

    Args:
        rule: the rule.
        layout: the blocks of the d elements.
        payloads: the sent blocks of each update; if the vector for the result is on a device, there or on the host.
        sent: the blocks that each payload holds: `[n, B]`.
        context: see `Rule.combine`.
        to: where the result is written.
    """

    def work(out: Any, base: Any, reference: Any, *rows: Any) -> tuple[Combined, Mask]:
        updates = Updates(layout, rows, sent, to=Destination(base, out, to.threads))
        return combine(rule, updates, replace(context, reference=reference))

    return _in_memory_of(to.out, work, to.base, context.reference, *payloads)


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
    update = Updates(context.layout, [payload], context.sent[None, :], to=Destination(out=out))
    refused = screen(update)
    decision = rule.judge(update.without(refused), replace(context, sent=context.sent & ~refused[0]))
    return decision, refused[0]


def decide_received(rule: AsyncRule, payload: Vector, context: AsyncContext, out: Vector) -> tuple[Decision, Mask]:
    """Do what `decide` does with a payload as a role has received it: on the host, or in the queue of a device."""

    def work(out: Any, reference: Any, payload: Any) -> tuple[Decision, Mask]:
        return decide(rule, payload, replace(context, reference=reference), out)

    return _in_memory_of(out, work, context.reference, payload)


def _in_memory_of(out: Any, work: Callable[..., T], *vectors: Any) -> T:
    """Call `work` with `out` and other vectors; if `out` is on a device, with tensors there, to which they are copied.

    A vector that is None is passed on as None.
    """
    if not isinstance(out, DeviceVector):
        return work(out, *vectors)
    given = [vector for vector in vectors if vector is not None]

    def with_absent(out: Any, *memory: Any) -> T:
        present = iter(memory)
        return work(out, *(None if vector is None else next(present) for vector in vectors))

    return out.device.compute(with_absent, out, *(to_device(vector, out.device) for vector in given))
