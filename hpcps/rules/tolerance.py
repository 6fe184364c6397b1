"""A number of updates that a key gives as a count or as a share of those of a combiner."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated

from pydantic import Field

from hpcps.registry.config import MOST_ROLES

Tolerance = Annotated[int, Field(ge=0, le=MOST_ROLES)] | Annotated[float, Field(ge=0, lt=0.5)]
"""A number of Byzantine updates, or their share among those of a combiner."""

DEFAULT = 0.2
"""The share that rules tolerate by default; it is ZenoPS's."""


def count(share: int | float, n: int) -> int:
    """Return the number of n updates that a number or a share means; a share is rounded down."""
    if isinstance(share, int):
        return share
    return int(Decimal(repr(share)) * n)  # in binary floating point 0.29 * 100 is less than 29
