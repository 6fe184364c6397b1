"""The base classes of rules; a synchronous rule combines the updates of one round."""

from __future__ import annotations

from abc import ABC
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from hpcps.numerics import arrays
from hpcps.numerics.layout import Layout, Mask, Vector
from hpcps.numerics.mixture import part_by_part
from hpcps.numerics.operations import put
from hpcps.numerics.updates import Combined, NotFiniteError, Updates
from hpcps.registry.config import Config
from hpcps.registry.failures import described, errors_of, returned
from hpcps.registry.field import OneOf
from hpcps.registry.kinds import not_among, not_one_of
from hpcps.rules.context import DEFAULT, NO_CONTEXT, Context, Tolerance, count
from hpcps.rules.preaggregation import PreAggregator

Sees = Literal["coordinate", "block", "vector"]
"""What a coordinate of the result depends on: that coordinate of the updates, its block, or all of them."""

Need = Literal["reference", "loss", "random", "state"]
"""A value that a rule may need in addition to the updates; see `rules.context.Context`."""

MOST_BEFORE = 16
"""The largest number of pre-aggregators before a rule."""

WHOLE: frozenset[Need] = frozenset({"loss", "random", "state"})
"""The needs that only a rule with `sees = "vector"` may have: calls for parts of a round could not share them."""


def widest(scopes: Sequence[Sees]) -> Sees:
    """Return the widest of what several components see."""
    return max(scopes, key=get_args(Sees).index)


class BaseRule(Config, ABC):
    """The declarations of every rule; a subclass's fields are its keys in the file, and `kind` is its name there."""

    mode: ClassVar[Literal["sync", "async"]]
    """The `train.mode` that the rule is for."""

    sees: ClassVar[Sees] = "vector"
    """The part of an update that the rule must see at once: partitions and shards never divide it."""

    needs: ClassVar[frozenset[Need]] = frozenset()
    """What the rule needs in addition to the updates; a validator trains only if this contains `reference`."""

    kind: str

    @property
    def own_scope(self) -> Sees:
        """What this rule itself sees with its keys: `sees`, or less if a key such as `per` says so."""
        return self.sees

    @property
    def scope(self) -> Sees:
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

    def reason_against(self, n: int) -> str:
        """Return why n updates are too few, with what is done before the rule; empty if they are enough.

        `hpcps check` refuses a topology with such a combiner.
        """
        return self.unable(n)

    def unable(self, n: int) -> str:
        """Return why the rule itself cannot combine n updates; empty if it can. The result of such a round is zero."""
        return ""

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
        return {"mode": cls.mode, "sees": cls.sees, "needs": sorted(cls.needs)}

    @classmethod
    def faults(cls) -> list[str]:
        found = not_one_of(cls, "sees", get_args(Sees)) + not_among(cls, "needs", get_args(Need))
        if not found and cls.sees != "vector" and (whole := sorted(WHOLE & cls.needs)):
            found.append(f'it needs {" and ".join(whole)}, which requires sees = "vector", not "{cls.sees}"')
        return found


class Rule(BaseRule, ABC):
    """A rule of synchronous training: it combines the updates of a round.

    A subclass defines `aggregate`; or `combine`, if it handles skipped blocks itself or saves memory.
    """

    mode: ClassVar[Literal["sync", "async"]] = "sync"

    checks: ClassVar[bool] = False
    """Whether `combine` detects updates that are not finite; other rules get updates that are known to be finite."""

    before: Annotated[
        tuple[Annotated[PreAggregator, OneOf("preaggregators")], ...], Field(strict=False, max_length=MOST_BEFORE)
    ] = Field((), description="What is done with the updates before the rule combines them, in this order.")
    skipped: Literal["zero", "left_out"] = Field(
        "zero",
        description="How a block counts that its worker skipped or that is not finite: `zero`: as zero; `left_out`: "
        "not at all, so that the rule combines fewer updates in that block; for rules per coordinate or block.",
    )

    @property
    def scope(self) -> Sees:
        return widest([self.own_scope, *(stage.scope for stage in self.before)])

    @property
    def requires(self) -> frozenset[str]:
        return frozenset(self.needs).union(*(stage.needs for stage in self.before))

    @property
    def title(self) -> str:
        return " after ".join([self.kind, *([", ".join(stage.kind for stage in self.before)] if self.before else [])])

    bound: ClassVar[tuple[int, int] | None] = None
    """(a, b) of a rule that tolerates f Byzantine updates among a f + b or more, as published. `hpcps check` and
    `rule(X)` refuse fewer updates; a round in which fewer came is recorded."""

    def tolerated(self, n: int) -> int | None:
        """Return the number of Byzantine updates among n that the keys of the rule state; None if no key does."""
        return None

    def below_bound(self, n: int) -> str:
        """Return why n updates are fewer than the rule's `bound` requires; empty if they are not."""
        f = self.tolerated(n)
        if self.bound is None or f is None or n >= self.bound[0] * f + self.bound[1]:
            return ""
        return f"{self.kind} needs at least {self.bound[0]} f + {self.bound[1]} updates, and f = {f} of {n}"

    def tolerating(self, f: int) -> Rule:
        """Return this rule for another number of Byzantine updates, if a key states one."""
        return self

    def reason_against(self, n: int) -> str:
        from hpcps.rules.combining import reason_against

        return reason_against(self, n, bounds=True)

    def contradiction(self) -> str:
        """Return which keys contradict each other, and what to do; empty if none do."""
        if self.skipped == "left_out" and self.scope == "vector":
            return f'{self.title} sees whole updates, so blocks cannot be left out: use skipped = "zero"'
        return ""

    def aggregate(self, updates: Vector, context: Context) -> Vector | tuple[Vector, Mask]:
        """Combine the updates of one round.

        Args:
            updates: n > 0 updates of d elements, `[n, d]` float32, all finite; a skipped block is zero.
            context: what the rule needs in addition to them.

        Returns:
            The combined update `[d]`; or a pair of it and the mask of accepted updates `[n]` or of accepted (update,
            block) pairs `[n, B]`, which the acceptance statistics use. Without a mask, they say that the acceptance is
            unknown. A result that is not finite counts as zero, with no update accepted.
        """
        raise TypeError(f"{type(self).__name__} defines neither aggregate nor combine")

    def combine(self, updates: Updates, context: Context = NO_CONTEXT) -> Combined:
        """Combine the updates of one round, block by block.

        Args:
            updates: n updates of d elements; a skipped block is zero. n may be 0. They must not be changed. All are
                finite, unless the rule `checks` and they are not yet `checked`.
            context: what the rule needs in addition to them.

        Returns:
            The combined update, written to the destination of the updates; zero if n is 0.

        Raises:
            SpecError: `aggregate` returned something else; so does a plugin's or package's `aggregate` that failed. The
                message names the rule, its file and the line.
            NotFiniteError: updates that were not `checked` are not finite; their destination is undefined.
        """
        if self.sees == "vector":
            return self._aggregated(updates, context)
        return part_by_part(
            updates,
            lambda part, columns: self._aggregated(part, context.cut(columns)),
            whole=self.sees == "block",
        )

    def _aggregated(self, updates: Updates, context: Context) -> Combined:
        """Call `aggregate` on the host, and check what it returns."""
        n, layout = len(updates), updates.layout
        accepted = np.zeros((n, len(layout.blocks)), np.bool_)
        result, known = np.zeros(layout.size, np.float32), True
        if n:
            rows = arrays.on_host(updates.tile(slice(0, layout.size)))
            here = replace(context, reference=arrays.on_host(context.reference))
            with errors_of(self, "its aggregate() failed", foreign=True):
                found = self.aggregate(rows, here)
            known = isinstance(found, tuple) and len(found) == 2
            update, which = found if known else (found, np.ones(n, np.bool_))
            combined, entered = self._array(update), self._array(which)
            if combined is None or combined.shape != (layout.size,):
                what = f"{described(update)}: it must return an array [{layout.size}]"
                raise returned(self, "aggregate", what)
            if entered is None or entered.shape not in ((n,), accepted.shape):
                what = f"{described(which)} as accepted updates: it must be an array [{n}] or {list(accepted.shape)}"
                raise returned(self, "aggregate", what)
            result = combined
            accepted[:] = entered if entered.ndim == 2 else entered[:, None]
        if not np.isfinite(result).all():
            result, accepted[:], known = np.zeros_like(result), False, True
        return replace(put(updates, result, accepted), acceptance_known=known)

    def checked_combine(self, updates: Updates, context: Context = NO_CONTEXT) -> Combined:
        """Call `combine`, and check what it returns.

        Raises:
            SpecError: a plugin's or package's `combine` failed, or it returned something else; the message names the
                rule, its file and the line.
            NotFiniteError: see `combine`.
        """
        with errors_of(self, "its combine() failed", foreign=True, passing=(NotFiniteError,)):
            combined = self.combine(updates, context)
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
        return combined

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
        context: Context | None = None,
    ) -> Any:
        """Combine updates outside of a run, such as in a notebook: `TrimmedMean(trim=0.2)(X)`.

        Args:
            updates: `[n, d]`, a numpy array or a torch tensor of any floating type and device; rows that are not finite
                count as zero.
            blocks: the sizes of the blocks of the d elements; by default they are one block.
            reference: `[d]`, the validator's own update, for rules that need it.
            context: everything else that the rule needs; `reference` replaces the one in it.

        Returns:
            The combined update `[d]`, of the same type and on the same device as `updates`.

        Raises:
            ValueError: an array has the wrong shape, something that the rule needs is missing, or the rule cannot
                combine so many updates.
        """
        from hpcps.rules.combining import combine

        rows = arrays.as_floats(updates, 2, "updates")
        if reason := self.contradiction() or self.reason_against(len(rows)):
            raise ValueError(reason)
        layout = Layout.of_sizes((rows.shape[1],) if blocks is None else blocks, rows.shape[1])
        combined, _ = combine(self, Updates.of(rows, layout), self._context(context, reference, rows, layout))
        return arrays.like(updates, combined.update)


class Tolerant(Rule, ABC):
    """A rule that tolerates up to f Byzantine updates among the n of its combiner."""

    bound: ClassVar[tuple[int, int]] = (2, 1)

    f: Tolerance = Field(
        DEFAULT,
        description="Number of Byzantine updates among those of a combiner that the rule tolerates, a whole number; "
        "or their share, below 0.5, which is rounded down.",
    )

    def unable(self, n: int) -> str:
        f = self.tolerated(n)
        return f"{self.kind} needs more than f updates, and f = {f} of {n}" if f >= n else ""

    def tolerated(self, n: int) -> int:
        return count(self.f, n)

    def tolerating(self, f: int) -> Tolerant:
        return self.model_copy(update={"f": f})
