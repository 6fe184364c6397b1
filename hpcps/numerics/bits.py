"""Masks of blocks as hexadecimal numbers, for the records."""

from __future__ import annotations

import numpy as np

from hpcps.numerics.layout import Mask


def hexadecimal(mask: Mask, first: int = 0) -> str:
    """Return a mask `[B]` as a hexadecimal number whose bit `first + b` is block b."""
    return format(int.from_bytes(np.packbits(mask, bitorder="little").tobytes(), "little") << first, "x")
