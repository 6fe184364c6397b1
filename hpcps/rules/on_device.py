"""Rules on updates in device memory: which rules have kernels there, and the way to them from `rule(X)`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hpcps.numerics import device
from hpcps.numerics.arrays import as_numpy
from hpcps.numerics.layout import Layout, Mask
from hpcps.rules.context import Context, Needs

if TYPE_CHECKING:  # the library works without torch
    import torch

    from hpcps.numerics.device.engine import DeviceMean
    from hpcps.numerics.device.updates import DeviceUpdates


@dataclass(frozen=True)
class DeviceContext:
    """What a rule may use on the device in addition to the updates; all tensors are `[d]` float32 and contiguous.

    Attributes:
        reference: the validator's own update.
        base: the vector to which the combined update is added after rounding; by default none.
        out: the array for the result; by default a new one. It may be the base.
    """

    reference: torch.Tensor | None = None
    base: torch.Tensor | None = None
    out: torch.Tensor | None = None


@dataclass(frozen=True)
class Fetched:
    """What a role needs to know on the host about a result on the device.

    Attributes:
        finite: whether the result is finite.
        accepted: the accepted, or applied, blocks: `[n, B]`.
        refused: the blocks that were rejected because they are not finite: `[n, B]`.
        negated: the applied blocks whose sign the rule flipped: `[n, B]`.
    """

    finite: bool
    accepted: Mask
    refused: Mask
    negated: Mask


@dataclass(frozen=True)
class DeviceCombined:
    """The result of a rule on n updates, on the device; nothing has waited for it.

    Attributes:
        update: the combined update `[d]` float32; or, if there was a base, the sum of the base and the update.
        finite: whether `update` is finite: `[]` bool; it may not be if the base is not, or if the sum overflows.
        accepted: the (update, block) pairs in it: `[n, B]` bool; none if there were too few updates for the rule.
        refused: the pairs that were rejected because they are not finite: `[n, B]` bool.
    """

    update: torch.Tensor
    finite: torch.Tensor
    accepted: torch.Tensor
    refused: torch.Tensor

    def fetch(self) -> Fetched:
        """Wait for the result, and return what the host needs of it, in one copy."""
        return fetched(self.finite, self.accepted, self.refused)


@dataclass(frozen=True)
class DeviceDecision:
    """The decision of a rule on one update, on the device; nothing has waited for it.

    Attributes:
        update: what is added to the model `[d]` float32; a block that is not applied is zero.
        applied: the blocks that are added to the model: `[B]` bool.
        negated: the applied blocks whose sign the rule flipped: `[B]` bool.
        refused: the blocks that were rejected because they are not finite: `[B]` bool.
    """

    update: torch.Tensor
    applied: torch.Tensor
    negated: torch.Tensor
    refused: torch.Tensor

    def fetch(self) -> Fetched:
        """Wait for the decision, and return what the host needs of it, with n = 1, in one copy."""
        rows = (mask[None] for mask in (self.applied, self.refused, self.negated))
        return fetched(self.applied.new_ones(()), *rows)


def fetched(
    finite: torch.Tensor, accepted: torch.Tensor, refused: torch.Tensor, negated: torch.Tensor | None = None
) -> Fetched:
    """Copy masks `[n, B]` and a flag `[]` to the host, together."""
    import torch

    masks = [accepted, refused, accepted.new_zeros(accepted.shape) if negated is None else negated]
    found = torch.cat([finite.reshape(1), *(mask.reshape(-1) for mask in masks)]).cpu().numpy()
    return Fetched(bool(found[0]), *found[1:].reshape(3, *accepted.shape))


DeviceKernel = Callable[["DeviceUpdates", DeviceContext], DeviceCombined]
"""Combines n > 0 updates; blocks that are not finite are rejected, as if they had been skipped."""


DeviceDecider = Callable[["DeviceUpdates", DeviceContext], DeviceDecision]
"""Decides on one update; blocks that are not finite are not applied."""


def applies(rule: Any) -> bool:
    """Return whether the kernel of a rule computes the same as the rule.

    A class that replaces `combine`, `aggregate` or `decide` of a rule, such as a plugin's, does not inherit the kernel.
    """
    names = {"aggregate", "combine", "decide", "device_kernel"}
    definer = next(cls for cls in type(rule).__mro__ if names & vars(cls).keys())
    return "device_kernel" in vars(definer)


def average(updates: DeviceUpdates, context: DeviceContext) -> DeviceCombined:
    """Compute the mean of the updates."""
    from hpcps.numerics.device import engine

    return _coordinates(updates, engine.average(updates, context.base, context.out))


def mean_of_ranks(n: int, low: int, high: int, *, nearest: bool = False) -> DeviceKernel | None:
    """Return the kernel of the mean of sorted values, see `engine.ordered`; None if there are too many updates."""
    from hpcps.numerics.device import engine

    if high - low == n:  # `nearest` is the mean of all, too
        return average
    if n > engine.MOST_SORTED:
        return None

    def combine(updates: DeviceUpdates, context: DeviceContext) -> DeviceCombined:
        return _coordinates(updates, engine.ordered(updates, low, high, context.base, context.out, nearest=nearest))

    return combine


def nothing(updates: DeviceUpdates, context: DeviceContext) -> DeviceCombined:
    """Return the result for too few updates: zero, with nothing accepted."""
    from hpcps.numerics.device import engine

    return _coordinates(updates, engine.nothing(updates, context.base, context.out), accepted=False)


def _coordinates(updates: DeviceUpdates, mean: DeviceMean, *, accepted: bool = True) -> DeviceCombined:
    refused = mean.kept != updates.addresses
    return DeviceCombined(mean.update, ~mean.overflow.any(), refused.new_full(refused.shape, accepted), refused)


def mean_of_similar(rho: float, excess: float) -> DeviceKernel:
    """Return the kernel of Zeno, see `filtering.mean_of_similar`."""

    def combine(updates: DeviceUpdates, context: DeviceContext) -> DeviceCombined:
        from hpcps.numerics.device import filtering

        assert context.reference is not None, "zeno needs the validator's own update"
        found = filtering.mean_of_similar(updates, context.reference, rho, excess, context.base, context.out)
        return DeviceCombined(found.update, ~found.overflow.any(), found.accepted != 0, found.refused)

    return combine


def accept(update: DeviceUpdates, context: DeviceContext) -> DeviceDecision:
    """Apply all blocks of an update that were sent and are finite."""
    from hpcps.numerics.device import engine
    from hpcps.numerics.device.upload import upload

    mean = engine.average(update, out=engine.destination(update, None, context.out))
    refused = (mean.kept != update.addresses)[0]
    applied = upload(update.sent[0], update.device) & ~refused
    return DeviceDecision(mean.update, applied, applied.new_zeros(applied.shape), refused)


def clip_or_negate(threshold: float) -> DeviceDecider:
    """Return the kernel of Zeno++, see `filtering.clip_or_negate`."""

    def decide(update: DeviceUpdates, context: DeviceContext) -> DeviceDecision:
        from hpcps.numerics.device import engine, filtering

        assert context.reference is not None, "zeno++ needs the validator's own update"
        out = engine.destination(update, None, context.out)
        return DeviceDecision(out, *filtering.clip_or_negate(update, context.reference, threshold, out))

    return decide


def as_vector(values: Any, like: torch.Tensor, layout: Layout) -> torch.Tensor:
    """Return a validator's own update as a contiguous float32 tensor `[d]` on the device of another tensor.

    Raises:
        ValueError: it has another size, another number of dimensions, or holds something other than numbers.
    """
    import torch

    if not hasattr(values, "detach") or values.ndim != 1 or values.is_complex():
        values = torch.from_numpy(as_numpy(values, 1, "reference").copy())
    if len(values) != layout.size:
        raise ValueError(f"reference has {len(values)} elements, the updates have {layout.size}")
    vector: torch.Tensor = values.detach().to(like.device, torch.float32).contiguous()
    return vector


def overflows(updates: torch.Tensor) -> bool:
    """Return whether some finite values are not finite in float32."""
    return updates.element_size() > 4 and bool((updates.float().isinf() & updates.isfinite()).any())


def supported(updates: Any, dimensions: int, context: Needs | None) -> bool:
    """Return whether a rule may combine updates on their device; a context's arrays for results are the host's."""
    on_host = isinstance(context, Context) and (context.base is not None or context.out is not None)
    return getattr(updates, "ndim", None) == dimensions and not on_host and device.supports(updates)
