"""Combines updates in the memory of a device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpcps.numerics.layout import Layout, Mask, Vector
from hpcps.numerics.updates import Updates
from hpcps.numerics.vectors import DeviceVector, as_vector, placed
from hpcps.rules import screening
from hpcps.rules.asynchronous import AsyncRule, Decision
from hpcps.rules.base import Rule
from hpcps.rules.combined import Combined
from hpcps.rules.context import AsyncContext, Context, Needs
from hpcps.rules.on_device import applies


def combine_placed(
    rule: Rule, layout: Layout, payloads: Sequence[Vector], sent: Mask, context: Context
) -> tuple[Combined, Mask]:
    """Do what `screening.combine` does, on a device.

    Args:
        rule: the rule.
        layout: the blocks of the d elements.
        payloads: the sent blocks of each update, on the device or on the host.
        sent: the blocks that each payload holds: `[n, B]`.
        context: see `Rule.combine`; its `out` is on the device.

    Returns:
        What `screening.combine` does; the combined update is complete when the device is that far.
    """
    out: Any = context.out
    assert isinstance(out, DeviceVector), "the result is on a device"
    device = out.device
    updates = [placed(payload, device) for payload in payloads]
    base = [] if context.base is None else [context.base]
    reference = [] if context.reference is None else [context.reference]

    def work(out: Any, *others: Any) -> tuple[Combined, Mask]:
        rows, others = others[: len(updates)], others[len(updates) :]
        there = replace(context, out=out, base=None, reference=None)
        there = replace(there, base=others[0]) if base else there
        there = replace(there, reference=others[-1]) if reference else there
        if device.has_tensors:
            return _combine_tensors(rule, layout, rows, sent, there)
        return screening.combine(rule, Updates(layout, rows, sent), there)

    return device.compute(work, out, *updates, *(placed(vector, device) for vector in base + reference))


def decide_placed(rule: AsyncRule, payload: Vector, context: AsyncContext, out: DeviceVector) -> tuple[Decision, Mask]:
    """Do what `screening.decide` does, on a device.

    Args:
        rule: the rule.
        payload: the sent blocks of an update, on the device or on the host.
        context: see `screening.decide`.
        out: on the device; it is complete when the device is that far.
    """
    device = out.device
    reference = [] if context.reference is None else [placed(context.reference, device)]

    def work(out: Any, payload: Any, *reference: Any) -> tuple[Decision, Mask]:
        there = replace(context, reference=reference[0] if reference else None)
        if device.has_tensors:
            return _decide_tensors(rule, payload, there, out)
        return screening.decide(rule, payload, there, out)

    return device.compute(work, out, placed(payload, device), *reference)


def prepare(rule: Rule, layout: Layout, numbers: Iterable[int], context: Context) -> None:
    """Combine zeros, so that the kernels for some numbers of updates are compiled before a round needs them.

    The kernel of a sorting rule is compiled for each number of updates, which takes up to seconds.

    Args:
        rule: the rule.
        layout: the blocks of the d elements.
        numbers: the numbers of updates.
        context: see `combine_placed`; its `out` is overwritten.
    """
    out: Any = context.out
    assert isinstance(out, DeviceVector), "the result is on a device"
    if not out.device.has_tensors:
        return
    zeros = out.device.borrow(layout.size)
    zeros[:] = 0
    for n in numbers:
        if rule.kernel_for(n) is not None:
            payload = as_vector(zeros)
            combine_placed(rule, layout, [payload] * n, np.ones((n, len(layout.blocks)), np.bool_), context)


def prepare_decision(rule: AsyncRule, layout: Layout, reference: Vector | None, out: DeviceVector) -> None:
    """Decide on zeros, so that the first update does not wait until the kernels are compiled.

    Args:
        rule: the rule.
        layout: the blocks of the d elements.
        reference: `[d]`, with any values, if the rule needs one.
        out: see `decide_placed`; it is overwritten.
    """
    if not out.device.has_tensors or not applies(rule) or rule.device_kernel() is None:
        return
    zeros, everything = out.device.borrow(layout.size), np.ones(len(layout.blocks), np.bool_)
    zeros[:] = 0
    decide_placed(rule, as_vector(zeros), AsyncContext(reference, layout=layout, sent=everything), out)


def _combine_tensors(
    rule: Rule, layout: Layout, payloads: Sequence[Any], sent: Mask, context: Context
) -> tuple[Combined, Mask]:
    """Combine tensors of one device; the tensors of a context are there, too."""
    from hpcps.numerics.device.updates import DeviceUpdates
    from hpcps.rules.device_combining import combine as combine_there
    from hpcps.rules.on_device import DeviceContext

    out: Any = context.out
    updates = DeviceUpdates(layout, payloads, sent) if len(payloads) else DeviceUpdates.none(layout, out.device)
    host = Context(loss=context.loss, random=context.random, state=context.state, threads=context.threads)
    base: Any = context.base
    reference: Any = context.reference
    found = combine_there(rule, updates, DeviceContext(reference, base, out), host).fetch()
    return Combined(out, found.finite, found.accepted), found.refused


def _decide_tensors(rule: AsyncRule, payload: Any, context: AsyncContext, out: Any) -> tuple[Decision, Mask]:
    """Decide on a tensor of a device; the reference of the context is there, too."""
    from hpcps.numerics.device.updates import DeviceUpdates
    from hpcps.rules.device_combining import decide as decide_there
    from hpcps.rules.on_device import DeviceContext

    update = DeviceUpdates(context.layout, [payload], context.sent[None, :])
    host = Needs(loss=context.loss, random=context.random, state=context.state)
    reference: Any = context.reference
    found = decide_there(rule, update, DeviceContext(reference, out=out), host).fetch()
    return Decision(found.accepted[0], found.negated[0]), found.refused[0]
