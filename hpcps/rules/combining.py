"""Combines updates with a rule: rejects blocks that are not finite, and applies the pre-aggregators before the rule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import takewhile
from typing import Any, TypeVar

import numpy as np

from hpcps.numerics import arrays
from hpcps.numerics.blocks import Float64
from hpcps.numerics.layout import Layout, Mask, Vector
from hpcps.numerics.mixture import Mixture, combine_what_was_sent, combined, mixed_products
from hpcps.numerics.operations import gram, norms_gram, over_blocks, screen, zero_result
from hpcps.numerics.updates import Combined, Destination, NotFiniteError, Updates
from hpcps.numerics.vectors import DeviceVector, to_device
from hpcps.registry.failures import described, errors_of, returned
from hpcps.rules.asynchronous import AsyncRule, Decision
from hpcps.rules.base import Rule
from hpcps.rules.context import NO_CONTEXT, AsyncContext, Context
from hpcps.rules.preaggregation import Compares, PreAggregator
from hpcps.rules.weighted import finite_products

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


def detects(rule: Rule) -> bool:
    """Return whether the rule, with the pre-aggregators before it, detects updates that are not finite."""
    return _compares(rule) != "nothing" if rule.before else rule.checks


def combine_finite(rule: Rule, updates: Updates, context: Context) -> Combined:
    """Combine updates, with the pre-aggregators before the rule; see `Rule.combine`.

    Raises:
        NotFiniteError: the updates are not `checked`, the rule `detects` those that are not finite, and there are some.
    """
    if rule.skipped == "left_out" and not updates.used.all():
        return combine_what_was_sent(updates, lambda part, columns: _after_all(rule, part, context.cut(columns)))
    return _after_all(rule, updates, context)


def reason_against(rule: Rule, n: int, *, bounds: bool) -> str:
    """Return why the rule with the pre-aggregators before it cannot combine n updates; empty if it can.

    Args:
        rule: the rule.
        n: the number of updates.
        bounds: whether numbers below a `bound` are too few, too; see `Rule.bound`.
    """
    rows = n
    for stage, f in _stages(rule, n):
        with errors_of(stage, f"its unable({rows}, {f}) or remaining({rows}) failed", foreign=True):
            reason, remaining = stage.unable(rows, f), stage.remaining(rows)
        if reason := (stage.below_bound(rows, f) if bounds else "") or reason:
            return reason
        rows = remaining
    last = rule_after(rule, n, rows)
    reason = (last.below_bound(rows) if bounds else "") or last.unable(rows)
    return f"{reason} rows that are left of {n} updates" if reason and rows != n else reason


def rule_after(rule: Rule, n: int, rows: int) -> Rule:
    """Return the rule for the rows that are left of n updates: as many of them may be Byzantine as of the updates."""
    f = rule.tolerated(n)
    return rule if f is None or rows == n else rule.tolerating(f)


def _stages(rule: Rule, n: int) -> list[tuple[PreAggregator, int]]:
    """Return the pre-aggregators, and the number of Byzantine updates among n that each expects."""
    return [(stage, stage.byzantine(n, rule.tolerated(n))) for stage in rule.before]


def _after_all(rule: Rule, updates: Updates, context: Context) -> Combined:
    n = len(updates)
    if not rule.before:
        return rule.checked_combine(updates, context)
    if n == 0 or not updates.layout.blocks or reason_against(rule, n, bounds=False):
        return zero_result(updates)
    rows = _mixture(rule, updates, context)
    found = rule_after(rule, n, len(rows)).checked_combine(rows, context)
    return replace(found, accepted=rows.entered(found.accepted))


def _mixture(rule: Rule, updates: Updates, context: Context) -> Mixture:
    """Return the rows that the pre-aggregators make of the updates."""
    n, products = len(updates), None
    match _compares(rule):
        case "pairs":
            current = products = finite_products(gram(updates), updates)
        case "norms":
            current = finite_products(norms_gram(updates), updates)
        case _:
            current = np.zeros((1, n, n))
    if all(stage.scope == "vector" for stage in rule.before):
        current = over_blocks(current)[None]
    weights = np.eye(n)[None]
    for stage, f in _stages(rule, n):
        whole = [over_blocks(current)] if stage.scope == "vector" else [*current]
        here = np.stack([_weights(stage, each, f, context) for each in whole])
        weights, current = combined(here, weights), mixed_products(here, current)
    return Mixture(updates, weights, products)


def _compares(rule: Rule) -> Compares:
    """Return the inner products of the updates that all pre-aggregators together use."""
    used = [stage.compares for stage in rule.before]
    scaled = len([*takewhile(lambda each: each == "norms", used)])  # the norms of scaled rows follow from the norms
    if "pairs" in used or "norms" in used[scaled:]:
        return "pairs"
    return "norms" if scaled else "nothing"


def _weights(stage: PreAggregator, products: Float64, f: int, context: Context) -> Float64:
    """Call `PreAggregator.weights`, and check what it returns."""
    random = context.random if "random" in stage.needs else None
    with errors_of(stage, "its weights() failed", foreign=True):
        found: object = stage.weights(products, f, random)
    n = len(products)
    shape = (stage.remaining(n), n)
    if not isinstance(found, np.ndarray) or found.shape != shape or found.dtype.kind not in "fiub":
        raise returned(stage, "weights", f"{described(found)}: it must be an array {list(shape)}")
    if not np.isfinite(found).all():
        raise returned(stage, "weights", "weights that are not finite")
    return found.astype(np.float64)
