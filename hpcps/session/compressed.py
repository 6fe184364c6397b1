"""Tensors that travel encoded, and what a process keeps of each."""

from __future__ import annotations

import numpy as np

from hpcps.aggregation.encoding import UpdateDecoder, UpdateEncoder
from hpcps.compression import Codec
from hpcps.compression.base import Way
from hpcps.errors import RunError
from hpcps.numerics.layout import Allocate, Layout, Vector
from hpcps.protocol.messages import Peer
from hpcps.protocol.partitioning import Partition
from hpcps.session.reduction import compresses, compressor_of
from hpcps.session.tensors import Tensor


class TensorEncoder:
    """Encodes a tensor: what a worker sends, or a result. What the encoding loses stays in a residual."""

    @staticmethod
    def of(tensor: Tensor, way: Way, allocate: Allocate) -> TensorEncoder | None:
        """Return the encoder of what workers send, or of results; None if they travel as they are."""
        codec = _codec_of(tensor, way)
        return None if codec is None else TensorEncoder(codec, tensor.layout, allocate)

    def __init__(self, codec: Codec, layout: Layout, allocate: Allocate) -> None:
        """Begin without a residual."""
        self._encoder = UpdateEncoder(codec, None, layout, (_whole(layout),), allocate)
        self._mask = np.ones(len(layout.blocks), np.bool_)
        self._residual = np.zeros(layout.size, np.float32) if codec.feeds_back else None

    def __call__(self, values: Vector) -> Vector:
        """Return the encoding of the values and the residual, which stays valid until the next call."""
        if self._residual is not None:
            with np.errstate(all="ignore"):
                values = values + self._residual
        return self._encoder.encode(0, self._mask, values, self._residual)


class TensorDecoder:
    """Decodes a tensor, as `UpdateDecoder` does."""

    @staticmethod
    def of(tensor: Tensor, way: Way) -> TensorDecoder | None:
        """Return the decoder of what workers send, or of results; None if they travel as they are."""
        codec = _codec_of(tensor, way)
        return None if codec is None else TensorDecoder(codec, tensor)

    def __init__(self, codec: Codec, tensor: Tensor) -> None:
        """Begin without estimates."""
        self._name, layout = tensor.declaration.name, tensor.layout
        self._decoder = UpdateDecoder(codec, 0, layout.size)
        self._mask, self._whole = np.ones(len(layout.blocks), np.bool_), _whole(layout)

    def __call__(self, sender: Peer, encoded: Vector) -> Vector:
        """Return the values that a process has sent.

        Raises:
            RunError: they are not an encoding of this tensor.
        """
        values, reason = self._decoder(sender, self._mask, encoded, self._whole)
        if reason is not None:
            raise RunError(
                f"tensor '{self._name}' has come in an encoding that is invalid: {reason}: use the same version of "
                "hpcps in all processes. If they have it, the message was damaged on its way: start the script again"
            )
        return values


def _codec_of(tensor: Tensor, way: Way) -> Codec | None:
    reduction = tensor.declaration.reduction
    if not tensor.layout.size:
        return None  # there is nothing to encode
    compressor = compressor_of(reduction["compression"]) if compresses(reduction) else None
    return None if compressor is None else Codec.of(compressor, tensor.layout, way)


def _whole(layout: Layout) -> Partition:
    return Partition.of(layout, (0, layout.size))
