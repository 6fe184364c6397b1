"""How a role combines updates in device memory: with the kernels of the rule, or on the host if it has none."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from hpcps.numerics.device import engine
from hpcps.numerics.device.updates import DeviceUpdates
from hpcps.numerics.device.upload import upload
from hpcps.numerics.updates import Updates
from hpcps.rules.asynchronous import AsyncRule
from hpcps.rules.base import Rule
from hpcps.rules.context import NOTHING, AsyncContext, Context, Needs
from hpcps.rules.on_device import DeviceCombined, DeviceContext, DeviceDecider, DeviceDecision, applies
from hpcps.rules.screening import combine as combine_on_host
from hpcps.rules.screening import screen

if TYPE_CHECKING:
    from hpcps.numerics.layout import Vector


def why_on_host(rule: Rule | AsyncRule, n: int) -> str:
    """Return why a rule combines n > 0 updates on the host, in a line; empty if it combines them on the device."""
    if isinstance(rule, AsyncRule):
        return "" if _decider(rule) else f"{rule.title} runs on the host: it has no kernel for a GPU"
    if rule.kernel_for(n) is not None:
        return ""
    if rule.before or rule.skipped != "zero":
        return f"{rule.title} runs on the host: with `before` or `skipped` it has no kernel for a GPU"
    sorts = n > engine.MOST_SORTED and rule.kernel_for(engine.MOST_SORTED) is not None
    limit = f" for {n} updates, more than {engine.MOST_SORTED}" if sorts else ""
    return f"{rule.title} runs on the host: it has no kernel for a GPU{limit}"


def combine(rule: Rule, updates: DeviceUpdates, context: DeviceContext, needs: Context = NOTHING) -> DeviceCombined:
    """Reject blocks that are not finite, as if they had been skipped, and combine the others.

    Args:
        rule: the rule.
        updates: n updates as they were received; n may be 0.
        context: the reference, the base and the array for the result, on the device.
        needs: what the rule needs in addition, if it runs on the host; its reference, base and out are not used.
    """
    n = len(updates)
    if not n:
        return _zero(updates, context)
    if (kernel := rule.kernel_for(n)) is not None:
        return kernel(updates, context)
    given = replace(needs, reference=_downloaded(context.reference), base=None, out=None)
    combined, refused = combine_on_host(rule, _on_host(updates), given)
    out = engine.destination(updates, context.base, context.out)
    update = torch.from_numpy(combined.update)
    if context.base is None:
        out.copy_(update)
    else:
        torch.add(context.base, update.to(out.device), out=out)
    accepted, rejected = (upload(mask, out.device) for mask in (combined.accepted, refused))
    finite = torch.isfinite(out).all() if context.base is not None else torch.ones_like(accepted[:0].all())
    return DeviceCombined(out, finite, accepted, rejected)


def decide(
    rule: AsyncRule, update: DeviceUpdates, context: DeviceContext, needs: Needs | None = None
) -> DeviceDecision:
    """Reject blocks that are not finite, and decide on the others.

    Args:
        rule: the rule.
        update: one update as it was received.
        context: the reference and the array for the result, on the device.
        needs: what the rule needs in addition, if it runs on the host; its reference is not used.
    """
    if (kernel := _decider(rule)) is not None:
        return kernel(update, context)
    layout, out = update.layout, engine.destination(update, None, context.out)
    received = _on_host(update)
    refused = screen(received)
    values = received.without(refused).tile(slice(0, layout.size))[0]
    given = needs or Needs()
    needed = {field.name: getattr(given, field.name) for field in fields(Needs)}
    needed["reference"] = _downloaded(context.reference)
    decision = rule.checked_decision(values, AsyncContext(**needed, layout=layout, sent=(update.sent & ~refused)[0]))
    values[~layout.spread(decision.applied)] = 0
    out.copy_(torch.from_numpy(values))
    return DeviceDecision(out, *(upload(mask, out.device) for mask in (decision.applied, decision.negated, refused[0])))


def _decider(rule: AsyncRule) -> DeviceDecider | None:
    """Return the kernel of an asynchronous rule; None if only the host can decide as it does."""
    return rule.device_kernel() if applies(rule) else None


def _zero(updates: DeviceUpdates, context: DeviceContext) -> DeviceCombined:
    """Return the result for no update: zero, or the base."""
    out = engine.destination(updates, context.base, context.out)
    if context.base is None:
        out.zero_()
    elif out is not context.base:
        out.copy_(context.base)
    none = torch.zeros((0, len(updates.layout.blocks)), dtype=torch.bool, device=out.device)
    return DeviceCombined(out, torch.isfinite(out).all(), none, none)


def _on_host(updates: DeviceUpdates) -> Updates:
    payloads = [payload.float().cpu().numpy() for payload in updates.payloads]
    return Updates(updates.layout, payloads, updates.sent, checked=updates.checked)


def _downloaded(reference: torch.Tensor | None) -> Vector | None:
    if reference is None:
        return None
    values: Vector = np.asarray(reference.cpu().numpy())
    return values
