"""Loops of compressors over values; `kernels.coding` has them compiled, with the same bits.

Some are definitions for both Python and numba: each step depends on the one before, and integers are of numpy's fixed
sizes.
"""

from hpcps.numerics.coding.drawing import BUCKET, buckets_of, dither, draw_indices, quantize, sum_squares, undither
from hpcps.numerics.coding.products import multiply_out, product, transposed_product
from hpcps.numerics.coding.rounding import (
    TILE,
    largest_magnitude,
    lengthen,
    narrow,
    pack_codes,
    pack_signs,
    round_products,
    round_to_upper,
    sum_magnitudes,
    tiles,
    unpack_codes,
    widen,
)
from hpcps.numerics.coding.selection import select_by_heap, select_largest

__all__ = [
    "BUCKET",
    "TILE",
    "buckets_of",
    "dither",
    "draw_indices",
    "largest_magnitude",
    "lengthen",
    "multiply_out",
    "narrow",
    "pack_codes",
    "pack_signs",
    "product",
    "quantize",
    "round_products",
    "round_to_upper",
    "select_by_heap",
    "select_largest",
    "sum_magnitudes",
    "sum_squares",
    "tiles",
    "transposed_product",
    "undither",
    "unpack_codes",
    "widen",
]
