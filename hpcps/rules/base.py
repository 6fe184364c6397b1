"""The base classes of rules: a rule combines the updates of one round, or decides on one asynchronous update."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hpcps.numerics.arrays import as_numpy, like
from hpcps.numerics.layout import Layout, Mask, Vector
from hpcps.numerics.updates import NotFiniteError, Updates
from hpcps.registry.config import Config
from hpcps.registry.failures import described, returned, told
from hpcps.registry.validation import not_among, not_one_of
from hpcps.rules.combined import Combined, Destination
from hpcps.rules.context import NOTHING, AsyncContext, Context, Needs

Sees = Literal["coordinate", "block", "vector"]
"""What a coordinate of the result depends on: that coordinate of the updates, its block, or all of them."""

Need = Literal["reference", "loss", "random", "state"]
"""A value that a rule may need in addition to the updates; see `rules.context.Needs`."""

WHOLE: frozenset[Need] = frozenset({"loss", "random", "state"})
"""The needs that only a rule with `sees = "vector"` may have: calls for parts of a round could not share them."""


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
    def scope(self) -> Sees:
        """What this rule sees with its keys: `sees`, or less if a key such as `per` says so."""
        return self.sees

    def unable(self, n: int) -> str:
        """Return why the rule cannot combine n updates; empty if it can.

        `hpcps check` refuses a topology with such a combiner. In a round with too few updates the result is zero.
        """
        return ""

    def _layout(self, blocks: Sequence[int] | None, size: int) -> Layout:
        """Return the layout of updates outside of a run; by default they are one block."""
        sizes = np.asarray((size,) if blocks is None else blocks)
        if sizes.ndim != 1 or (sizes.size and (sizes.dtype.kind not in "iu" or sizes.min() < 0)):
            raise ValueError("blocks must be whole numbers from 0, such as [2, 3]: the size of each block")
        layout = Layout.of([(str(i), (block,)) for i, block in enumerate(sizes.tolist())])
        if layout.size != size:
            raise ValueError(f"blocks add up to {layout.size} elements, the updates have {size}")
        return layout

    def _reference(self, reference: Any, layout: Layout) -> Vector:
        own = as_numpy(reference, 1, "reference")
        if own.shape != (layout.size,):
            raise ValueError(f"reference has {own.size} elements, the updates have {layout.size}")
        return own

    def _check_needs(self, given: Needs) -> None:
        for need in sorted(self.needs - {"state"}):
            if getattr(given, need) is None:
                argument = "`reference=`, or in " if need == "reference" else ""
                raise ValueError(
                    f"{self.kind} needs {need}: give it in {argument}`context`, such as hpcps.rules.Context({need}=…)"
                )

    @classmethod
    def declarations(cls) -> dict[str, object]:
        """See `Config.declarations`."""
        return {"mode": cls.mode, "sees": cls.sees, "needs": sorted(cls.needs)}

    @classmethod
    def faults(cls) -> list[str]:
        """See `Config.faults`."""
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

    def aggregate(self, updates: Vector, context: Context) -> Vector | tuple[Vector, Mask]:
        """Combine the updates of one round.

        Args:
            updates: n > 0 updates of d elements, `[n, d]` float32, all finite; a skipped block is zero.
            context: what the rule needs in addition to them.

        Returns:
            The combined update `[d]`; or a pair of it and the mask of accepted updates `[n]` or of accepted (update,
            block) pairs `[n, B]`, which the acceptance statistics use. A result that is not finite counts as zero.
        """
        raise TypeError(f"{type(self).__name__} defines neither aggregate nor combine")

    def combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
        """Combine the updates of one round, block by block.

        Args:
            updates: n updates of d elements; a skipped block is zero. n may be 0. They must not be changed. All are
                finite, unless the rule `checks` and they are not yet `checked`.
            context: what the rule needs in addition to them, and where it writes the result.

        Returns:
            The combined update; zero if n is 0.

        Raises:
            SpecError: `aggregate` returned something else; so does a plugin's or package's `aggregate` that failed. The
                message names the rule, its file and the line.
            NotFiniteError: updates that were not `checked` are not finite; the content of `context.out` is undefined.
        """
        n, layout = len(updates), updates.layout
        accepted = np.zeros((n, len(layout.blocks)), np.bool_)
        destination = Destination(layout.size, context)
        result = np.zeros(layout.size, np.float32)
        if n:
            rows = np.empty((n, layout.size), np.float32)
            with told(self, "its aggregate() failed", foreign=True):
                found = self.aggregate(updates.tile(slice(0, layout.size), rows), context)
            update, which = found if isinstance(found, tuple) and len(found) == 2 else (found, np.ones(n, np.bool_))
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
            result, accepted[:] = np.zeros_like(result), False
        destination.put(slice(0, layout.size), result)
        return destination.combined(accepted)

    def checked_combine(self, updates: Updates, context: Context = NOTHING) -> Combined:
        """Call `combine`, and check what it returns.

        Raises:
            SpecError: a plugin's or package's `combine` failed, or it returned something else; the message names the
                rule, its file and the line.
            NotFiniteError: see `combine`.
        """
        with told(self, "its combine() failed", foreign=True, passing=(NotFiniteError,)):
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
            if not isinstance(values, np.ndarray) or values.shape != shape or (kind and values.dtype != np.bool_)
        ]
        if wrong:
            raise returned(self, "combine", "; ".join(wrong))
        return combined

    @classmethod
    def faults(cls) -> list[str]:
        """See `Config.faults`."""
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
        from hpcps.rules.screening import combine

        rows = as_numpy(updates, 2, "updates")
        if reason := self.unable(len(rows)):
            raise ValueError(reason)
        layout = self._layout(blocks, rows.shape[1])
        given = context or Context()
        if reference is not None:
            own = self._reference(reference, layout)
            given = Context(own, given.loss, given.random, given.state, threads=given.threads)
        self._check_needs(given)
        combined, _ = combine(self, Updates.of(rows, layout), given)
        return like(updates, combined.update)


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
    """A rule of asynchronous training: it decides on one update at a time."""

    mode: ClassVar[Literal["sync", "async"]] = "async"

    @abstractmethod
    def decide(self, update: Vector, context: AsyncContext) -> Decision:
        """Decide which blocks of an update are applied, and change the update in place to what is added to the model.

        Args:
            update: `[d]` float32, all finite; a skipped block is zero. Afterwards the content of a block that is not
                applied is undefined.
            context: the blocks, which of them were sent, and what the rule needs.
        """

    def checked_decision(self, update: Vector, context: AsyncContext) -> Decision:
        """Call `decide`, and check what it returns.

        Raises:
            SpecError: `decide` failed or returned something else; the message names the rule, its file and the line.
        """
        with told(self, "its decide() failed"):
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
        self, update: Any, *, blocks: Sequence[int] | None = None, reference: Any = None, context: Needs | None = None
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
        values = as_numpy(update, 1, "update").copy()
        layout = self._layout(blocks, values.size)
        given = context or Needs()
        own = given.reference if reference is None else self._reference(reference, layout)
        sent = np.array([np.isfinite(values[block.offset : block.stop]).all() for block in layout.blocks], np.bool_)
        values[~layout.spread(sent)] = 0
        full = AsyncContext(
            reference=own, loss=given.loss, random=given.random, state=given.state, layout=layout, sent=sent
        )
        self._check_needs(full)
        decision = self.checked_decision(values, full)
        return like(update, np.where(layout.spread(decision.applied & sent), values, np.float32(0)))

    def weight(self, staleness: int) -> float:
        """Return the factor by which an update is multiplied when it is applied.

        Args:
            staleness: the number of updates that were applied since the model version from which this one was computed.
        """
        return 1.0
