"""Compressors: how the blocks of an update are encoded before they are sent; functions on arrays, with their keys.

- `base`: the base classes
- `codec`: encodes and decodes the blocks of an update with a compressor
- `rounding`: 16-bit floats and 8-bit integers
- `signs`: one bit a value
- `sparse`: some of the values, with their indices
- `quantized`: random levels without bias
- `dithering`: BytePS's random levels
- `low_rank`: PowerSGD
- `transform`: the largest coefficients of a cosine transform
- `lossless`: zstd
"""

from hpcps.compression.base import BaseCompressor, Code, Compressor, Kept, NoCompression
from hpcps.compression.codec import Codec
from hpcps.compression.dithering import Dithering
from hpcps.compression.lossless import Lossless
from hpcps.compression.low_rank import PowerSGD
from hpcps.compression.quantized import Qsgd
from hpcps.compression.rounding import Bf16, Fp16, Int8
from hpcps.compression.signs import Onebit, Sign
from hpcps.compression.sparse import Randomk, SparseCompressor, SparseLoco, Topk
from hpcps.compression.transform import DeMo

__all__ = [
    "BaseCompressor",
    "Bf16",
    "Code",
    "Codec",
    "Compressor",
    "DeMo",
    "Dithering",
    "Fp16",
    "Int8",
    "Kept",
    "Lossless",
    "NoCompression",
    "Onebit",
    "PowerSGD",
    "Qsgd",
    "Randomk",
    "Sign",
    "SparseCompressor",
    "SparseLoco",
    "Topk",
]
