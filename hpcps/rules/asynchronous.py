"""The base class of rules of asynchronous training, which decide on one update at a time, and those by staleness."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.numerics import arrays
from hpcps.numerics.blocks import Float64
from hpcps.numerics.layout import Layout, Mask, Vector
from hpcps.numerics.operations import scale, screen
from hpcps.numerics.updates import Destination, Updates
from hpcps.numerics.vectors import with_memory
from hpcps.registry.config import MOST, Config
from hpcps.registry.failures import described, errors_of, returned
from hpcps.rules.base import BaseRule, Granularity
from hpcps.rules.context import AsyncContext, Context

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
    """A rule of asynchronous training: it decides on one update at a time.

    What it applies is multiplied by alpha. If it is `weighted`, a run with weights also multiplies it by the weight of
    the update's worker, divided by the mean of all workers' weights.
    """

    mode: ClassVar[Literal["sync", "async"]] = "async"

    @abstractmethod
    def decide(self, update: Vector, context: AsyncContext) -> Decision:
        """Decide which blocks of an update are applied, and change the update in place to what is added to the model.

        Args:
            update: `[d]` float32, all finite; a skipped block is zero. Afterwards the content of a block that is not
                applied is undefined.
            context: the blocks, which of them were sent, and what the rule needs.
        """

    def judge(self, update: Updates, context: AsyncContext) -> Decision:
        """Decide on one update where it is, and write to its destination what is added to the model.

        This calls `decide` on the host; a rule that can do without, for updates on a device, is a `ScalingRule`.

        Args:
            update: one update, all finite, with a vector for the result; blocks that are not applied are undefined.
            context: see `decide`; a reference is where the update is.
        """
        whole, out = slice(0, update.layout.size), update.to.out
        assert out is not None, "the caller allocates the result"
        if update.on_host:
            return self.checked_decision(update.tile(whole, out[None, :])[0], context)
        values = arrays.on_host(update.tile(whole)[0]).copy()
        decision = self.checked_decision(values, replace(context, reference=arrays.on_host(context.reference)))
        out[:] = arrays.like(update.empty(0), values)
        return decision

    def checked_decision(self, update: Vector, context: AsyncContext) -> Decision:
        """Call `decide`, and check what it returns.

        Raises:
            SpecError: `decide` failed or returned something else; the message names the rule, its file and the line.
        """
        with errors_of(self, "its decide() failed"):
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
        self, update: Any, *, blocks: Sequence[int] | None = None, reference: Any = None, context: Context | None = None
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
        values = arrays.as_floats(update, 1, "update")
        layout = Layout.of_sizes((len(values),) if blocks is None else blocks, len(values))
        given = self._context(context, reference, values, layout)
        row = Updates.of(values[None, :], layout)
        sent = ~screen(row)[0]
        out = row.empty(layout.size)
        full = AsyncContext(given.reference, given.loss, given.random, given.state, layout=layout, sent=sent)
        decision = self.judge(row.without(~sent[None, :]).onto(Destination(out=out)), full)
        for block in np.array(layout.blocks, object)[~(decision.applied & sent)]:
            out[block.offset : block.stop] = 0
        return arrays.like(update, out)

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


def decide_finite(rule: AsyncRule, payload: Vector, context: AsyncContext, out: Vector) -> tuple[Decision, Mask]:
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
    """Do what `decide_finite` does, on the host or in the queue of the device on which `out` is."""

    def work(out: Any, reference: Any, payload: Any) -> tuple[Decision, Mask]:
        return decide_finite(rule, payload, replace(context, reference=reference), out)

    return with_memory(work, out, context.reference, payload)


class ScalingRule(AsyncRule):
    """A rule that multiplies each block of an update by a factor, wherever the update is."""

    @abstractmethod
    def factors(self, update: Updates, context: AsyncContext) -> tuple[Decision, Float64 | None]:
        """Return the decision on one update, and the factor of each block `[B]`; None if the update is not changed."""

    def judge(self, update: Updates, context: AsyncContext) -> Decision:
        decision, factors = self.factors(update, context)
        if factors is not None:
            scale(update, factors)
        elif update.to.out is not None:
            update.tile(slice(0, update.layout.size), update.to.out[None, :])
        return decision

    def decide(self, update: Vector, context: AsyncContext) -> Decision:
        whole = Updates.of(update[None, :], context.layout).onto(Destination(out=update))
        decision, factors = self.factors(whole, context)
        if factors is not None:
            scale(whole, factors)
        return decision


class NaiveAsync(ScalingRule):
    """Adds every update multiplied by alpha, without any check and with any staleness."""

    granularity: ClassVar[Granularity] = "coordinate"
    weighted: ClassVar[bool] = True

    kind: Literal["naive_async"] = "naive_async"

    def factors(self, update: Updates, context: AsyncContext) -> tuple[Decision, Float64 | None]:
        return Decision.accept(context.sent), None


class Constant(Config):
    """s(t) = 1."""

    kind: Literal["constant"] = "constant"

    def weight(self, staleness: int) -> float:
        """Return s(t)."""
        return 1.0


class Polynomial(Config):
    """s(t) = (1 + t)^-a."""

    kind: Literal["polynomial"] = "polynomial"
    a: float = Field(0.5, ge=0, le=100, description="Exponent; 0.5 in FedAsync.")

    def weight(self, staleness: int) -> float:
        """Return s(t)."""
        return float((1.0 + staleness) ** -self.a)


class Hinge(Config):
    """s(t) = 1 if t <= b, else 1 / (a (t - b) + 1)."""

    kind: Literal["hinge"] = "hinge"
    a: float = Field(10.0, ge=0, le=MOST, description="Slope of 1 / s(t) above b; 10 in FedAsync.")
    b: float = Field(4.0, ge=0, le=MOST, description="Staleness up to which the weight is 1; 4 in FedAsync.")

    def weight(self, staleness: int) -> float:
        """Return s(t)."""
        return 1.0 if staleness <= self.b else 1.0 / (self.a * (staleness - self.b) + 1.0)


class FedAsync(ScalingRule):
    """Adds every update multiplied by alpha s(t), where t is its staleness.

    After Xie, Koyejo and Gupta, "Asynchronous federated optimization", arXiv 1903.03934, section 3, which adds the
    difference between the worker's model and the current model instead of the update.
    """

    granularity: ClassVar[Granularity] = "coordinate"
    weighted: ClassVar[bool] = True

    kind: Literal["fed_async"] = "fed_async"
    staleness: Annotated[Constant | Polynomial | Hinge, Field(discriminator="kind")] = Field(
        Polynomial(), description="Weight of an update as a function s(t) of its staleness t."
    )

    def factors(self, update: Updates, context: AsyncContext) -> tuple[Decision, Float64 | None]:
        return Decision.accept(context.sent), None

    def weight(self, staleness: int) -> float:
        return self.staleness.weight(staleness)


_SMALLEST = float(np.finfo(np.float32).tiny)


class DcAsgd(ScalingRule):
    """Adds every update multiplied by alpha, corrected for the change of the model since its gradient was computed.

    A worker sends u = -eta g, where g is the gradient of one step of plain SGD and eta its learning rate. The servers
    add alpha (u - (lambda / eta) u u (w - b)) to the model w, element by element, which is one step of
    w - alpha eta (g + lambda g g (w - b)). `compensation` is lambda, and `backup` selects b. The gradient includes the
    weight decay. After Zheng, Meng, Wang, Chen, Yu, Ma and Liu, "Asynchronous stochastic gradient descent with delay
    compensation", ICML 2017.
    """

    granularity: ClassVar[Granularity] = "coordinate"
    weighted: ClassVar[bool] = True

    kind: Literal["dc_asgd"] = "dc_asgd"
    compensation: float = Field(
        0.04, ge=0, le=MOST, description="Factor of the compensation, lambda in the paper; 0: none."
    )
    backup: Backup = Field(
        "pulled",
        description="Weights that the model is compared with: `pulled` (the paper): those that the worker of the "
        "update pulled last; `previous` (some published implementations): those before the last update of the block, "
        "whichever worker sent it.",
    )

    @property
    def compares_with(self) -> Backup | None:
        return self.backup

    def factors(self, update: Updates, context: AsyncContext) -> tuple[Decision, Float64 | None]:
        return Decision.accept(context.sent), None

    def compensate(self, update: Vector, drift: Vector, rate: float) -> Vector:
        if rate < _SMALLEST:  # the update is itself zero
            return update
        change: Vector = update / np.float32(rate)
        change *= np.float32(self.compensation)
        change *= update
        change *= drift
        return np.subtract(update, change, out=change)
