"""The encoding of the sent blocks of an update, or of the parts of them in a partition."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcps.compression.base import BaseCompressor, Code, Compressor, Way
from hpcps.errors import message_of
from hpcps.numerics.layout import Layout, Mask, Vector
from hpcps.numerics.state import State
from hpcps.registry.failures import errors_of, returned

_INVALID = (ValueError, IndexError, OverflowError)


class Codec:
    """Encodes and decodes packed blocks with a compressor.

    A block below `min_bytes` is float32. Each other one is a little-endian uint32, the bytes of its encoding; then the
    encoding; then zeros up to a multiple of 4 bytes. So the encoding is an array of float32, as messages carry.

    Attributes:
        feeds_back: whether the error of the encoding is added to the next update.
        loses: whether the error of the encoding is lost.
        momentum: μ of the momentum that is added to updates before; 0 for none.
        estimates: whether the differences to estimates of updates are encoded (EF21).
    """

    @staticmethod
    def of(compressor: BaseCompressor, layout: Layout, way: Way = "update") -> Codec | None:
        """Return the codec of a run's compressor for its whole model; None if updates, or models, are not encoded."""
        encodes = isinstance(compressor, Compressor) and compressor.encodes(way)
        return Codec(compressor, layout, way) if isinstance(compressor, Compressor) and encodes else None

    def __init__(self, compressor: Compressor, layout: Layout, way: Way = "update") -> None:
        self._compressor = compressor
        self._of_blocks = [compressor.for_block(block.shape) for block in layout.blocks]
        # Whether a block is encoded does not depend on how partitions and shards divide it.
        self._encoded = layout.sizes * 4 >= max(compressor.min_bytes, 1)
        self._kept: list[dict[str, NDArray[Any]]] = [{} for _ in layout.blocks]
        memory, momentum = compressor.memory, compressor.momentum
        self.feeds_back = memory in ("residual", "nesterov")
        self.loses = memory == "none"
        self.momentum = 0.0 if memory != "nesterov" else 0.9 if momentum is None else momentum
        self.estimates = memory == "ef21" and way == "update"

    def most_elements(self, layout: Layout, first: int) -> int:
        """Return the maximum size of an encoding of some blocks, the first of which has this index in the model."""
        blocks = enumerate(layout.blocks, first)
        return sum(1 + -(-self._most(n, b.size) // 4) if self._encoded[n] else b.size for n, b in blocks)

    def encode(
        self, layout: Layout, first: int, mask: Mask, values: Vector, out: Vector, errors: Vector | None = None
    ) -> Vector:
        """Encode the masked blocks.

        Args:
            layout: the blocks, or parts of blocks.
            first: the index of the first of them in the model.
            mask: the blocks that are encoded `[B]`.
            values: these blocks, one after another.
            out: gets the encoding: at least `most_elements`.
            errors: gets what is lost, in the places of the blocks in the layout `[d]`; zero for blocks that are not
                finite.

        Returns:
            The filled part of `out`.
        """
        taken = filled = 0
        for index in np.flatnonzero(mask).tolist():
            block = layout.blocks[index]
            lost = None if errors is None else errors[block.offset : block.stop]
            filled += self._put(first + index, values[taken : taken + block.size], out[filled:], lost)
            taken += block.size
        return out[:filled]

    def encode_anew(
        self, layout: Layout, first: int, mask: Mask, encoded: Vector, chosen: Mask, values: Vector, out: Vector
    ) -> Vector:
        """Encode other values of some of the masked blocks; the codes of the others stay as they are.

        Args:
            layout: see `encode`.
            first: see `encode`.
            mask: see `encode`.
            encoded: the encoding of the masked blocks, which a codec has made.
            chosen: those of them that have other values `[B]`.
            values: the other values, in the places of the blocks in the layout `[d]`.
            out: see `encode`.

        Returns:
            The filled part of `out`.
        """
        taken = filled = 0
        for index in np.flatnonzero(mask).tolist():
            block = layout.blocks[index]
            size = block.size
            if self._encoded[first + index]:
                size = 1 + -(-int(encoded[taken : taken + 1].view(np.uint32)[0]) // 4)
            if chosen[index]:
                filled += self._put(first + index, values[block.offset : block.stop], out[filled:], None)
            else:
                out[filled : filled + size] = encoded[taken : taken + size]
                filled += size
            taken += size
        return out[:filled]

    def _put(self, index: int, values: Vector, out: Vector, lost: Vector | None) -> int:
        """Write the code of a block; return its number of elements. `lost` gets the error of an encoding."""
        if self._encoded[index]:
            return self._write(index, values, out, lost)
        out[: len(values)] = values
        if lost is not None:
            lost[:] = 0
        return len(values)

    def _write(self, index: int, values: Vector, out: Vector, lost: Vector | None) -> int:
        """Write a block's size and encoding; return its number of elements."""
        code, compressor = out[1:].view(np.uint8), self._of_blocks[index]
        most = self._most(index, len(values))
        with errors_of(self._compressor, "its write() failed", foreign=True), np.errstate(all="ignore"):
            size: object = compressor.write(values, code[:most], self._kept[index])
            if not isinstance(size, int | np.integer) or not 0 <= size <= most:
                raise returned(self._compressor, "write", f"{size!r}: it must be a size of at most {most} bytes")
            size = int(size)
            if lost is not None:
                compressor.read(code[:size], lost)
                np.subtract(values, lost, out=lost)
                if (share := compressor.error_share()) != 1:
                    lost *= np.float32(share)
                if not np.isfinite(lost).all():
                    lost[:] = 0
        out[:1].view(np.uint32)[0] = size
        elements = 1 + -(-size // 4)
        code[size : 4 * (elements - 1)] = 0
        return elements

    def encode_difference(
        self, layout: Layout, first: int, mask: Mask, values: Vector, held: Vector, out: Vector
    ) -> Vector:
        """Encode the difference between the masked blocks and what the receivers have of them.

        Args:
            layout: see `encode`.
            first: see `encode`.
            mask: see `encode`.
            values: see `encode`.
            held: what the receivers have, in the places of the blocks in the layout `[d]`; becomes what they have next.
            out: see `encode`.

        Returns:
            The filled part of `out`.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            encoded = self.encode(layout, first, mask, values - held[_places(layout, mask)], out)
        self.decode_difference(layout, first, mask, encoded, held)
        return encoded

    def decode_difference(self, layout: Layout, first: int, mask: Mask, encoded: Vector, held: Vector) -> Vector:
        """Add an encoded difference to what a receiver has; return the masked blocks of the sum.

        An estimate that is not finite begins anew at zero, for the sender and the receiver.

        Raises:
            ValueError: see `decode`.
        """
        values, places = self.decode(layout, first, mask, encoded), _places(layout, mask)
        with np.errstate(over="ignore", invalid="ignore"):
            values += held[places]
        held[places] = values
        if self.estimates and not np.isfinite(values).all():
            for block in layout.blocks:
                part = held[block.offset : block.stop]
                part[:] = part if np.isfinite(part).all() else 0
        return values

    def decode(self, layout: Layout, first: int, mask: Mask, encoded: Vector) -> Vector:
        """Return the masked blocks, one after another; the encoding may come from an attacker.

        Raises:
            ValueError: they are not an encoding of these blocks; the text is the reason.
        """
        values = np.empty(layout.packed_size(mask), np.float32)
        taken = filled = 0
        for index in np.flatnonzero(mask).tolist():
            block = layout.blocks[index]
            part, rest = values[filled : filled + block.size], encoded[taken:]
            if self._encoded[first + index]:
                taken += self._read(first + index, block.name, rest, part)
            elif len(rest) < block.size:
                raise ValueError(f"its encoding ends within block {block.name}")
            else:
                part[:] = rest[: block.size]
                taken += block.size
            filled += block.size
        if taken != len(encoded):
            raise ValueError(f"its encoding has {len(encoded)} elements, and its mask announces {taken}")
        return values

    def _read(self, index: int, name: str, rest: Vector, values: Vector) -> int:
        """Decode a block; return its number of elements."""
        size = int(rest[:1].view(np.uint32)[0]) if len(rest) else 0
        elements = 1 + -(-size // 4)
        if size > self._most(index, len(values)) or elements > len(rest):
            raise ValueError(f"its encoding of block {name} announces {size} bytes")
        code: Code = rest[1:].view(np.uint8)[:size]
        try:
            failures = errors_of(self._compressor, "its read() failed", foreign=True, passing=_INVALID)
            with failures, np.errstate(all="ignore"):
                self._of_blocks[index].read(code, values)
        except _INVALID as error:
            raise ValueError(f"its encoding of block {name} is invalid: {message_of(error)}") from error
        return elements

    def state(self) -> State:
        """Return what the compressor keeps of each block, for a checkpoint."""
        arrays = {f"{n}.{name}": values for n, kept in enumerate(self._kept) for name, values in kept.items()}
        return State({name: np.array(values) for name, values in arrays.items()})

    def restore(self, state: State) -> None:
        """Restore what the compressor keeps of each block."""
        for kept in self._kept:
            kept.clear()
        for key, values in state.arrays.items():
            block, _, name = key.partition(".")
            self._kept[int(block)][name] = values.copy()

    def _most(self, index: int, n: int) -> int:
        """Return the maximum number of bytes of the encoding of n values of a block."""
        with errors_of(self._compressor, "its most_bytes() failed", foreign=True):
            return self._of_blocks[index].most_bytes(n)


def _places(layout: Layout, mask: Mask) -> slice | Mask:
    """Return the places of the masked blocks in a vector `[d]`."""
    return slice(None) if mask.all() else layout.spread(mask)
