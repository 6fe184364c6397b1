"""The data frames of a key-value message: keys, values, and the length of each value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcps.transport.pslite.encoding import MalformedFrameError
from hpcps.transport.pslite.meta import DataType

TYPES = (int(DataType.UINT64), int(DataType.CHAR), int(DataType.INT32))
"""The types of keys, values (as bytes) and lengths."""

Keys = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Pairs:
    """Keys and their values.

    Attributes:
        keys: `[n]`, ascending.
        values: the bytes of the values, concatenated; in a received message, a read-only view of the frame.
        lengths: bytes of each value `[n]`; None if all have the same length, or if there are none.
    """

    keys: Keys
    values: Bytes
    lengths: npt.NDArray[np.int32] | None = None

    def frames(self) -> list[Any]:
        """Return the frames to send; the values are not copied."""
        frames: list[Any] = [self.keys.data, self.values.data if self.values.size else b""]
        return frames if self.lengths is None else [*frames, self.lengths.data]

    @staticmethod
    def one(key: int, values: Bytes | None) -> Pairs:
        """Return the pair of a single key; with None, the request for it."""
        keys = np.array([key], np.uint64)
        if values is None:
            return Pairs(keys, np.empty(0, np.uint8))
        return Pairs(keys, values, np.array([values.nbytes], np.int32))

    @staticmethod
    def read(frames: Sequence[Any]) -> Pairs:
        """Read the data frames of a message.

        Args:
            frames: ZeroMQ frames, or other buffers.

        Raises:
            MalformedFrameError: the frames are inconsistent.
        """
        if len(frames) not in (2, 3):
            raise MalformedFrameError(f"{len(frames)} data frames are not keys and values, with or without lengths")
        keys, values, *rest = (np.frombuffer(frame, np.uint8) if len(frame) else _NOTHING for frame in frames)
        if not keys.size or keys.size % 8:
            raise MalformedFrameError(f"a frame of {keys.size} bytes is no list of keys")
        pairs = Pairs(keys.view(np.uint64), values, _lengths(rest[0]) if rest and rest[0].size else None)
        if (pairs.keys[1:] <= pairs.keys[:-1]).any():
            raise MalformedFrameError("the keys do not ascend")
        lengths = pairs.lengths
        if lengths is not None:
            if lengths.size != pairs.keys.size or (lengths < 0).any():
                raise MalformedFrameError(f"{lengths.size} lengths do not describe {pairs.keys.size} values")
            if int(lengths.sum(dtype=np.int64)) != values.size:
                raise MalformedFrameError(f"the lengths do not add up to the {values.size} bytes of the values")
        return pairs


_NOTHING: Bytes = np.empty(0, np.uint8)


def _lengths(frame: Bytes) -> npt.NDArray[np.int32]:
    if frame.size % 4:
        raise MalformedFrameError(f"a frame of {frame.size} bytes is no list of lengths")
    return frame.view(np.int32)
