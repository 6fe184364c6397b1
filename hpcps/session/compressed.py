"""Tensors that travel encoded: the compressor of a reduction, and what a worker keeps of a tensor."""

from __future__ import annotations

import numpy as np

from hpcps.compression import BaseCompressor, Codec, Compressor
from hpcps.compression.base import Way
from hpcps.errors import RunError, SpecError
from hpcps.numerics.layout import Allocate, Layout, Vector
from hpcps.registry.config import component_in


def compressor_of(table: object) -> Compressor | None:
    """Return the compressor of a table; None if it leaves tensors as they are.

    Raises:
        SpecError: there is no such compressor, its keys are wrong, or a session cannot use it.
    """
    from hpcps.spec.schema import Communication  # here, because its import takes long

    compressor: BaseCompressor = component_in(Communication, "compression", table)
    if not isinstance(compressor, Compressor):
        return None
    reason = compressor.obstacle() or compressor.obstacle_without_shapes()
    if compressor.memory not in ("residual", "none"):
        reason = f'has memory = "{compressor.memory}", which is for experiments: use "residual" or "none"'
    if reason:
        raise SpecError(f"compression {compressor.kind} {reason}")
    return compressor


class TensorCodec:
    """Encodes a tensor with a residual, and decodes it: what workers send to a holder, or the results that it sends."""

    @staticmethod
    def both(table: object, layout: Layout) -> tuple[TensorCodec | None, TensorCodec | None]:
        """Return the codec of what workers send, and that of results; None for those that are not encoded."""
        compressor = compressor_of(table)
        ways: tuple[Way, Way] = ("update", "model")
        sent, results = (
            TensorCodec(compressor, layout) if compressor and compressor.encodes(w) else None for w in ways
        )
        return sent, results

    def __init__(self, compressor: Compressor, layout: Layout) -> None:
        """Begin without a residual."""
        self._codec, self._layout = Codec(compressor, layout), layout
        self._mask = np.ones(len(layout.blocks), np.bool_)
        self._residual = np.zeros(layout.size if self._codec.feeds_back else 0, np.float32)
        self._room: Vector | None = None

    def encode(self, values: Vector, allocate: Allocate) -> Vector:
        """Return the words of the values and the residual, which gets the error."""
        if self._room is None:
            self._room = allocate(self._codec.most_words(self._layout, 0))
        if not self._codec.feeds_back:
            return self._codec.encode(self._layout, 0, self._mask, values, self._room)
        with np.errstate(all="ignore"):
            values = values + self._residual
        return self._codec.encode(self._layout, 0, self._mask, values, self._room, self._residual)

    def decode(self, name: str, words: Vector) -> Vector:
        """Return the values.

        Raises:
            RunError: the words are not an encoding of this tensor.
        """
        try:
            return self._codec.decode(self._layout, 0, self._mask, words)
        except ValueError as error:
            raise RunError(
                f"tensor '{name}' has come in an encoding that is invalid: {error}: use the same version of hpcps in "
                "all processes. If they have it, the message was damaged on its way: start the script again"
            ) from error
