"""The base classes of rules, and how updates of one round come to a synchronous rule, which combines them."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hpcps.numerics import arrays
from hpcps.numerics.blocks import Float64
from hpcps.numerics.layout import Layout, Mask, Vector
from hpcps.numerics.mixture import Mixture, combine_what_was_sent, part_by_part
from hpcps.numerics.operations import put, screen, zero_result
from hpcps.numerics.updates import Combined, Destination, NotFiniteError, Updates
from hpcps.numerics.vectors import with_memory
from hpcps.registry.failures import described, errors_of, returned
from hpcps.registry.field import OneOf
from hpcps.registry.kinds import not_among, not_one_of
from hpcps.rules.context import DEFAULT, NO_CONTEXT, Context, Tolerance, count
from hpcps.rules.preaggregation import PreAggregator, mixture
from hpcps.rules.stage import CombiningStage, Weighable, below_bound, too_few

Granularity = Literal["coordinate", "block", "vector"]
"""What a coordinate of the result depends on: that coordinate of the updates, its block, or all of them."""

Need = Literal["reference", "loss", "random", "state"]
"""A value that a rule may need in addition to the updates; see `rules.context.Context`."""

MOST_BEFORE = 16
"""The largest number of pre-aggregators before a rule."""

WHOLE: frozenset[Need] = frozenset({"loss", "random", "state"})
"""The needs that only a rule of whole vectors may have: a round calls other rules for each partition apart."""


def widest(scopes: Sequence[Granularity]) -> Granularity:
    """Return the widest of what several components see."""
    return max(scopes, key=get_args(Granularity).index)


class BaseRule(Weighable, ABC):
    """The declarations of every rule; a subclass's fields are its keys in the file, and `kind` is its name there."""

    mode: ClassVar[Literal["sync", "async"]]
    """The `train.mode` that the rule is for."""

    granularity: ClassVar[Granularity] = "vector"
    """The part of an update that the rule must see at once: partitions and shards never divide it."""

    sees: ClassVar[str]
    """Another name of `granularity` in the declaration of a class."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "sees" in vars(cls):
            cls.granularity = vars(cls)["sees"]

    needs: ClassVar[frozenset[Need]] = frozenset()
    """What the rule needs in addition to the updates; a validator trains only if this contains `reference`."""

    @property
    def own_scope(self) -> Granularity:
        """What this rule itself sees with its keys: `granularity`, or less if a key such as `per` says so."""
        return self.granularity

    @property
    def scope(self) -> Granularity:
        """What this rule and its pre-aggregators see."""
        return self.own_scope

    @property
    def title(self) -> str:
        """The name in messages, with the pre-aggregators."""
        return self.kind

    @property
    def requires(self) -> frozenset[str]:
        """The needs of this rule and of its pre-aggregators."""
        return self.needs

    def _context(self, given: Context | None, reference: Any, updates: Vector, layout: Layout) -> Context:
        """Return the context of a call outside of a run, with the reference where the updates are.

        Raises:
            ValueError: the reference has the wrong shape, or something that the rule needs is missing.
        """
        found = given or Context()
        if reference is None:
            reference = found.reference
        if reference is not None:
            own = arrays.as_floats(reference, 1, "reference")
            if len(own) != layout.size:
                raise ValueError(f"reference has {len(own)} elements, the updates have {layout.size}")
            if not arrays.is_tensor(updates):
                reference = arrays.on_host(own)
            else:
                reference = own if arrays.is_tensor(own) else arrays.like(updates, own)
        found = replace(found, reference=reference)
        self._check_needs(found)
        return found

    def _check_needs(self, given: Context) -> None:
        for need in sorted(self.requires - {"state"}):
            if getattr(given, need) is None:
                argument = "`reference=`, or in " if need == "reference" else ""
                raise ValueError(
                    f"{self.kind} needs {need}: give it in {argument}`context`, such as hpcps.rules.Context({need}=…)"
                )

    @classmethod
    def declarations(cls) -> dict[str, object]:
        return {"mode": cls.mode, "granularity": cls.granularity, "needs": sorted(cls.needs), "weighted": cls.weighted}

    @classmethod
    def faults(cls) -> list[str]:
        found = not_one_of(cls, "granularity", get_args(Granularity)) + not_among(cls, "needs", get_args(Need))
        if not found and cls.granularity != "vector" and (whole := sorted(WHOLE & cls.needs)):
            found.append(
                f'it needs {" and ".join(whole)}, which requires granularity = "vector", not "{cls.granularity}"'
            )
        return found


class Rule(BaseRule, CombiningStage, ABC):
    """A rule of synchronous training: it combines the updates of a round.

    A subclass defines `aggregate`; or `combine`, if it handles skipped blocks itself or saves memory. `fewest` says how
    many updates it needs.
    """

    mode: ClassVar[Literal["sync", "async"]] = "sync"

    checks: ClassVar[bool] = False
    """Whether `combine` detects updates that are not finite, as the operations of `hpcps.numerics.operations` do; other
    rules get updates that are known to be finite."""

    before: Annotated[
        tuple[Annotated[PreAggregator, OneOf("preaggregators")], ...], Field(strict=False, max_length=MOST_BEFORE)
    ] = Field((), description="What is done with the updates before the rule combines them, in this order.")
    skipped: Literal["zero", "left_out"] = Field(
        "zero",
        description="How a block counts that its worker skipped or that is not finite: `zero`: as zero; `left_out`: "
        "not at all, so that the rule combines fewer updates in that block; for rules per coordinate or block.",
    )

    @property
    def scope(self) -> Granularity:
        return widest([self.own_scope, *(stage.scope for stage in self.before)])

    @property
    def requires(self) -> frozenset[str]:
        return frozenset(self.needs).union(*(stage.needs for stage in self.before))

    @property
    def title(self) -> str:
        return " after ".join([self.kind, *([", ".join(stage.kind for stage in self.before)] if self.before else [])])

    def refused_weights(self) -> str:
        return next(filter(None, (stage.refused_weights() for stage in self.before)), super().refused_weights())

    def tolerated(self, n: int) -> int | None:
        """Return f, the number of Byzantine updates among n that the keys of the rule state; None if no key does."""
        return None

    def unable(self, n: int) -> str:
        """Return why the rule itself cannot combine n updates; empty if it can.

        By default, why they are fewer than `fewest`. The result of a round that returns a reason is zero.
        """
        return too_few(self, n, self.tolerated(n) or 0)

    def refusal(self, n: int, *, bounds: bool = True) -> str:
        """Return why the rule, with the pre-aggregators before it, cannot combine n updates; empty if it can.

        Args:
            n: the number of updates.
            bounds: whether fewer than a `bound` requires are too few, as for `hpcps check` and `rule(X)`; in a round
                they are not.
        """
        rows = n
        for stage, f in self.stages(n):
            with errors_of(stage, f"its unable({rows}, {f}) or remaining({rows}) failed", foreign=True):
                reason, remaining = stage.unable(rows, f), stage.remaining(rows)
            if reason := (below_bound(stage, rows, f) if bounds else "") or reason:
                return reason
            rows = remaining
        last = self.after(n, rows)
        expected = last.tolerated(rows) if bounds else None
        reason = ("" if expected is None else below_bound(last, rows, expected)) or last.unable(rows)
        return f"{reason} rows that are left of {n} updates" if reason and rows != n else reason

    def stages(self, n: int) -> list[tuple[PreAggregator, int]]:
        """Return the pre-aggregators, and the number of Byzantine updates among n that each expects."""
        return [(stage, stage.byzantine(n, self.tolerated(n))) for stage in self.before]

    def after(self, n: int, rows: int) -> Rule:
        """Return the rule for the rows that the pre-aggregators make of n updates: as many of them may be Byzantine."""
        f = self.tolerated(n)
        if f is None or rows == n or "f" not in type(self).model_fields:
            return self
        return self.model_copy(update={"f": f})

    def obstacle(self) -> str:
        """Return why it cannot be used in this environment, and what to do; empty if it can."""
        return ""

    def without(self, excluded: int, n: int) -> Rule:
        """Return the rule for the rest of n updates, of which some Byzantine ones are excluded: f is smaller by them.

        Shares that are not named `f` stay.

        Args:
            excluded: the number of excluded updates.
            n: the number of updates with them.
        """

        def less(stage: CombiningStage, f: int | None) -> dict[str, object]:
            return {"f": max(f - excluded, 0)} if f is not None and "f" in type(stage).model_fields else {}

        before = tuple(stage.model_copy(update=less(stage, f)) for stage, f in self.stages(n))
        own = getattr(self, "f", None)
        return self.model_copy(update={"before": before, **less(self, None if own is None else count(own, n))})

    def contradiction(self) -> str:
        """Return which keys contradict each other, and what to do; empty if none do."""
        if self.skipped == "left_out" and self.scope == "vector":
            return f'{self.title} sees whole updates, so blocks cannot be left out: use skipped = "zero"'
        return ""

    def aggregate(self, updates: Vector, context: Context) -> Vector | tuple[Vector, Mask]:
        """Combine the updates of one round.

        Args:
            updates: n > 0 updates of d elements, `[n, d]` float32, all finite; a skipped block is zero.
            context: what the rule needs in addition to them; its `weights`, if the rule is `weighted`.

        Returns:
            The combined update `[d]`; or a pair of it and the mask of accepted updates `[n]` or of accepted (update,
            block) pairs `[n, B]`, which the acceptance statistics use. Without a mask, they say that the acceptance is
            unknown. A result that is not finite counts as zero, with no update accepted.
        """
        raise TypeError(f"{type(self).__name__} defines neither aggregate nor combine")

    def combine(self, updates: Updates, context: Context = NO_CONTEXT) -> Combined:
        """Combine the updates of one round, block by block.

        Args:
            updates: n > 0 updates of d elements, as many as the rule is able to combine; a skipped block is zero. They
                must not be changed. They are known to be finite, unless the rule `checks`.
            context: what the rule needs in addition to them.

        Returns:
            The combined update, written to the destination of the updates.

        Raises:
            SpecError: `aggregate` returned something else; so does a plugin's or package's `aggregate` that failed. The
                message names the rule, its file and the line.
            NotFiniteError: the updates are not finite; their destination is undefined.
        """
        if self.granularity == "vector":
            return self._aggregated(updates, context)
        return part_by_part(
            updates,
            lambda part, columns: self._aggregated(part, context.cut(columns)),
            whole=self.granularity == "block",
        )

    def _aggregated(self, updates: Updates, context: Context) -> Combined:
        """Call `aggregate` on the host, and check what it returns."""
        n, layout = len(updates), updates.layout
        accepted = np.zeros((n, len(layout.blocks)), np.bool_)
        rows = arrays.on_host(updates.tile(slice(0, layout.size)))
        weights = updates.relative_weights if self.weighted else None
        here = replace(context, reference=arrays.on_host(context.reference), weights=weights)
        with errors_of(self, "its aggregate() failed", foreign=True):
            found = self.aggregate(rows, here)
        known = isinstance(found, tuple) and len(found) == 2
        update, which = found if known else (found, np.ones(n, np.bool_))
        result, entered = self._array(update), self._array(which)
        if result is None or result.shape != (layout.size,):
            what = f"{described(update)}: it must return an array [{layout.size}]"
            raise returned(self, "aggregate", what)
        if entered is None or entered.shape not in ((n,), accepted.shape):
            what = f"{described(which)} as accepted updates: it must be an array [{n}] or {list(accepted.shape)}"
            raise returned(self, "aggregate", what)
        accepted[:] = entered if entered.ndim == 2 else entered[:, None]
        if not np.isfinite(result).all():
            result, accepted[:], known = np.zeros_like(result), False, True
        return replace(put(updates, result, accepted), acceptance_known=known)

    def check_combined(self, combined: object, updates: Updates) -> None:
        """Check what `combine` has returned for updates.

        Raises:
            SpecError: it is no `Combined` of their shape; the message names the rule, its file and the line.
        """
        if not isinstance(combined, Combined):
            raise returned(self, "combine", f"{described(combined)}: it must return a hpcps.rules.Combined")
        parts = {
            "update": (combined.update, (updates.layout.size,), ""),
            "accepted": (combined.accepted, updates.used.shape, " of bool"),
        }
        wrong = [
            f"a Combined whose {name} is {described(values)}: it must be an array {list(shape)}{kind}"
            for name, (values, shape, kind) in parts.items()
            if getattr(values, "shape", None) != shape or (kind and getattr(values, "dtype", None) != np.bool_)
        ]
        if wrong:
            raise returned(self, "combine", "; ".join(wrong))

    @classmethod
    def faults(cls) -> list[str]:
        undefined = cls.aggregate is Rule.aggregate and cls.combine is Rule.combine
        return super().faults() + ["it defines neither aggregate nor combine"] * undefined

    @staticmethod
    def _array(value: Any) -> NDArray[Any] | None:
        """Return a value as an array of numbers; None if it is none."""
        try:
            array = np.asarray(value)
        except (TypeError, ValueError, RuntimeError):  # such as lists of different lengths, or a tensor on a GPU
            return None
        return array if array.dtype.kind in "fiub" else None

    def __call__(
        self,
        updates: Any,
        *,
        blocks: Sequence[int] | None = None,
        reference: Any = None,
        weights: Any = None,
        context: Context | None = None,
    ) -> Any:
        """Combine updates outside of a run, such as in a notebook: `TrimmedMean(trim=0.2)(X)`.

        Args:
            updates: `[n, d]`, a numpy array or a torch tensor of any floating type and device; rows that are not finite
                count as zero.
            blocks: the sizes of the blocks of the d elements; by default they are one block.
            reference: `[d]`, the validator's own update, for rules that need it.
            weights: `[n]`, how much each update counts, positive, for rules that are `weighted`; by default all alike.
            context: everything else that the rule needs; `reference` replaces the one in it.

        Returns:
            The combined update `[d]`, of the same type and on the same device as `updates`.

        Raises:
            ValueError: an array has the wrong shape, something that the rule needs is missing, or the rule cannot
                combine so many updates.
        """
        rows = arrays.as_floats(updates, 2, "updates")
        if reason := self.obstacle():
            raise ValueError(f"{self.kind} {reason}")
        if reason := self.contradiction() or self.refusal(len(rows)):
            raise ValueError(reason)
        layout = Layout.of_sizes((rows.shape[1],) if blocks is None else blocks, rows.shape[1])
        given = None if weights is None else self._checked_weights(weights, len(rows))
        found = self._context(context, reference, rows, layout)
        combined, _ = combine_finite(self, Updates.of(rows, layout, given), found)
        return arrays.like(updates, combined.update)

    def _checked_weights(self, weights: Any, n: int) -> Float64:
        """Return the weights of n updates outside of a run.

        Raises:
            ValueError: the rule takes none, or they are not n positive numbers.
        """
        if reason := self.refused_weights():
            raise ValueError(reason)
        found = self._array(weights)
        if found is None or found.shape != (n,) or not (np.isfinite(found) & (found > 0)).all():
            raise ValueError(f"weights are {described(weights)}: they must be {n} positive numbers, one for an update")
        return found.astype(np.float64)


class Tolerant(Rule, ABC):
    """A rule that tolerates up to f Byzantine updates among the n of its combiner."""

    bound: ClassVar[tuple[int, int]] = (2, 1)

    f: Tolerance = Field(
        DEFAULT,
        description="Number of Byzantine updates among those of a combiner that the rule tolerates, a whole number; "
        "or their share, below 0.5, which is rounded down.",
    )

    def fewest(self, f: int) -> int:
        return f + 1

    def tolerated(self, n: int) -> int:
        return count(self.f, n)


def combine_received(
    rule: Rule,
    layout: Layout,
    payloads: Sequence[Vector],
    sent: Mask,
    context: Context,
    to: Destination,
    weights: Float64 | None = None,
) -> tuple[Combined, Mask]:
    """Do what `combine_finite` does with payloads as a role has received them, where the result is to be.

    Args:
        rule: the rule.
        layout: the blocks of the d elements.
        payloads: the sent blocks of each update; if the vector for the result is on a device, there or on the host.
        sent: the blocks that each payload holds: `[n, B]`.
        context: see `Rule.combine`.
        to: where the result is written: on the host, or in the queue of a device.
        weights: how much each update counts, `[n]`; by default all count alike.
    """

    def work(out: Any, base: Any, reference: Any, *rows: Any) -> tuple[Combined, Mask]:
        updates = Updates(layout, rows, sent, to=Destination(base, out, to.threads), weights=weights)
        return combine_finite(rule, updates, replace(context, reference=reference))

    return with_memory(work, to.out, to.base, context.reference, *payloads)


def combine_finite(rule: Rule, updates: Updates, context: Context = NO_CONTEXT) -> tuple[Combined, Mask]:
    """Reject blocks that are not finite, as if they had been skipped, and combine the others.

    Most rounds have no such blocks. So a rule that detects them itself (`Rule.checks`), as pre-aggregators do, combines
    the updates first, and again without the rejected blocks if it has found any. It cannot do so if it writes over the
    base.

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
    if (rule.checks or rule.before) and complete and not in_place:
        with suppress(NotFiniteError), np.errstate(invalid="ignore"):
            return combine_preaggregated(rule, updates, context), np.zeros_like(updates.sent)
    refused = screen(updates)
    return combine_preaggregated(rule, updates.without(refused), context), refused


def combine_preaggregated(rule: Rule, updates: Updates, context: Context) -> Combined:
    """Apply the pre-aggregators, and combine the rows that they make with the rule; the result of too few is zero.

    A block that some updates lack is combined from those that have it if the rule leaves skipped blocks out.

    Args:
        rule: the rule.
        updates: the updates; known to be finite unless the rule `checks` or has pre-aggregators.
        context: see `Rule.combine`.

    Raises:
        NotFiniteError: the updates are not finite.
        SpecError: a plugin's or package's `combine` failed, or it returned something else; the message names the rule,
            its file and the line.
    """
    if rule.skipped == "left_out" and not updates.used.all():
        return combine_what_was_sent(
            updates, lambda part, columns: combine_preaggregated(rule, part, context.cut(columns))
        )
    n = len(updates)
    nothing = n == 0 or bool(rule.before and not updates.layout.blocks)
    if nothing or rule.refusal(n, bounds=False):
        return zero_result(updates)
    rows = mixture(rule.stages(n), updates, context.random) if rule.before else updates
    last = rule.after(n, len(rows))
    with errors_of(last, "its combine() failed", foreign=True, passing=(NotFiniteError,)):
        found = last.combine(rows, context)
    last.check_combined(found, rows)
    return replace(found, accepted=rows.entered(found.accepted)) if isinstance(rows, Mixture) else found
