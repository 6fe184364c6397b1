"""Compressors: how the blocks of an update are encoded before they are sent; functions on arrays, with their keys."""

from hpcps.compression.base import BaseCompressor, Code, Compressor, Kept, NoCompression
from hpcps.compression.codec import Codec
from hpcps.compression.dithering import Dithering
from hpcps.compression.rounding import Bf16, Fp16, Int8
from hpcps.compression.signs import Onebit, Sign
from hpcps.compression.sparse import Randomk, SparseCompressor, Topk

__all__ = [
    "BaseCompressor",
    "Bf16",
    "Code",
    "Codec",
    "Compressor",
    "Dithering",
    "Fp16",
    "Int8",
    "Kept",
    "NoCompression",
    "Onebit",
    "Randomk",
    "Sign",
    "SparseCompressor",
    "Topk",
]
