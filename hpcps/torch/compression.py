"""Compression: the types to which tensors are converted before they are exchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hpcps.errors import SpecError
from hpcps.registry import Config


class NoneCompressor:
    """Exchanges tensors as they are."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype | None]:
        """Return the tensor that is exchanged, and the type to which `decompress` converts its result."""
        return tensor, None

    @staticmethod
    def decompress(tensor: Tensor, ctx: torch.dtype | None) -> Tensor:
        """Return a result as a tensor of the type that `compress` has returned."""
        return tensor if ctx is None else tensor.to(ctx)


class FP16Compressor(NoneCompressor):
    """Exchanges float32 and float64 as float16: half of the bytes, with 11 significant bits, up to 65,504."""

    @staticmethod
    def compress(tensor: Tensor) -> tuple[Tensor, torch.dtype | None]:
        """Return the tensor as float16, and its type; other types as they are."""
        if tensor.dtype not in (torch.float32, torch.float64):
            return tensor, None
        return tensor.detach().to(torch.float16), tensor.dtype


Compressing = type[NoneCompressor] | str | Mapping[str, Any] | Config | None
"""What `compression=` takes: None, `Compression.none` or `.fp16`, or a compressor of hpcps by name, table, or itself.

A compressor of hpcps, such as "onebit" or {"kind": "topk", "k": 0.01}, encodes what a process sends, and its residual
of each tensor stays in the process. The aggregators decode it before they combine it, and return float32; with
direction = "both" or "model" they encode the results too, and keep a residual of each. With memory = "ef21" the process
sends the encoded differences to its estimate of the tensor, and the aggregators combine these estimates.
"""


def conversion(compression: Compressing) -> type[NoneCompressor]:
    """Return how a tensor is converted before it is exchanged; a compressor of hpcps encodes it later.

    Raises:
        SpecError: a class is given that converts no tensors.
    """
    if not isinstance(compression, type):
        return NoneCompressor
    if hasattr(compression, "compress"):
        return compression
    raise SpecError(
        f"compression is the class {compression.__name__}: use Compression.none, Compression.fp16, or a compressor of "
        'hpcps by its name, its table or an object, such as "onebit"'
    )


class Compression:
    """The conversions that `compression=` takes, with the names of BytePS and Horovod."""

    none = NoneCompressor
    fp16 = FP16Compressor
