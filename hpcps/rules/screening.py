"""What every update passes before its values count."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hpcps.blocks import tiles
from hpcps.kernels import worthwhile
from hpcps.layout import Mask, Vector
from hpcps.rules.base import Rule
from hpcps.rules.combined import Combined
from hpcps.updates import NotFiniteError, Updates

Values = TypeVar("Values", bound=NDArray[Any])


def screen(updates: Updates, threads: int = 1) -> Mask:
    """Find the blocks that count but have a NaN or an infinity: `[n, B]`; with so many threads at most."""
    if worthwhile(updates):
        from hpcps.kernels import engine

        return engine.screen(updates, threads)
    refused = np.zeros(updates.sent.shape, dtype=np.bool_)
    for tile in tiles(updates.layout, len(updates)):
        good = np.isfinite(updates.tile(tile.columns))
        if not good.all():
            refused[:, tile.blocks] |= tile.any(~good)
    return refused


def finite(values: Values, updates: Updates) -> Values:
    """Return values that are finite if all of the updates they come from are.

    Raises:
        NotFiniteError: they are not.
    """
    if not updates.checked and not np.isfinite(values).all():
        raise NotFiniteError
    return values


def combine(
    rule: Rule,
    updates: Updates,
    reference: Vector | None = None,
    *,
    base: Vector | None = None,
    out: Vector | None = None,
    threads: int = 1,
) -> tuple[Combined, Mask]:
    """Refuse blocks that are not finite, as if they had been skipped, and combine the rest.

    Most rounds have none, so a rule that finds out by itself is let loose on the updates as they came; what it wrote
    until it met one is written anew. That would not do where the base itself is written over.

    Args:
        rule: the rule.
        updates: the updates, as they came.
        reference: see `Rule.combine`, as for the base and where the result goes.
        base: what the combined update is added to.
        out: where the result goes.
        threads: the most threads that may share the work.

    Returns:
        What the rule made of them, and which of their blocks were refused: `[n, B]`.
    """
    in_place = base is not None and out is not None and np.may_share_memory(base, out)
    if rule.checks and not in_place:
        with suppress(NotFiniteError), np.errstate(invalid="ignore"):
            combined = rule.combine(updates, reference, base=base, out=out, threads=threads)
            return combined, np.zeros_like(updates.sent)
    refused = screen(updates, threads)
    return rule.combine(updates.without(refused), reference, base=base, out=out, threads=threads), refused
