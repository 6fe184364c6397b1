"""The loops of `hpcps.numerics.coding`, compiled."""

from __future__ import annotations

from hpcps.numerics import coding
from hpcps.numerics.kernels.compiled import kernel

select_largest = kernel(coding.select_largest)
draw_indices = kernel(coding.draw_indices)
dither = kernel(coding.dither)
undither = kernel(coding.undither)
