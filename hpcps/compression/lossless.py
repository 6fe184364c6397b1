"""A compressor that loses nothing."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.compression.base import Code, Compressor, Granularity, Kept
from hpcps.errors import SpecError
from hpcps.numerics.layout import Vector

_CHUNK = 1 << 17
"""Values that are encoded at once: their first bytes, second bytes and so on are a block of zstd each."""


class Lossless(Compressor):
    """The values themselves, compressed with zstd; the first bytes of all values stand together, and so on.

    The encoding of each 131,072 values is its size in bytes, uint32, then a frame of zstd, or the values if the frame
    would not be smaller. Updates with many equal values shrink most; those of normal distribution shrink by a sixth.
    """

    kind: Literal["lossless"] = "lossless"
    granularity: ClassVar[Granularity] = "coordinate"
    level: int = Field(1, ge=1, le=19, description="The level of zstd: higher ones are slower.")

    def obstacle(self) -> str:
        if find_spec("zstandard") is None:
            return "needs the package zstandard, which is not installed: pip install 'hpcps[lossless]'"
        return ""

    def most_bytes(self, n: int) -> int:
        return 4 * n + 4 * -(-n // _CHUNK)

    def write(self, values: Vector, code: Code, kept: Kept) -> int:
        compressor, size = self._zstd().ZstdCompressor(level=self.level), 0
        for chunk in _chunks(values):
            frame = compressor.compress(chunk.view(np.uint8).reshape(-1, 4).T.tobytes())
            stored = np.frombuffer(frame, np.uint8) if len(frame) < chunk.nbytes else chunk.view(np.uint8)
            code[size : size + 4] = np.array([len(stored)], np.uint32).view(np.uint8)
            code[size + 4 : size + 4 + len(stored)] = stored
            size += 4 + len(stored)
        return size

    def read(self, code: Code, values: Vector) -> None:
        zstd, place = self._zstd(), 0
        decompressor = zstd.ZstdDecompressor(max_window_size=4 * _CHUNK)
        for chunk in _chunks(values):
            size = int.from_bytes(code[place : place + 4].tobytes(), "little")
            stored = code[place + 4 : place + 4 + size]
            place += 4 + size
            if place > len(code) or size > chunk.nbytes:
                raise ValueError(f"it announces {size} bytes of {chunk.size} values")
            if size == chunk.nbytes:
                chunk.view(np.uint8)[:] = stored
                continue
            try:
                # A frame may announce any size, and the memory for it would be allocated.
                announced = zstd.get_frame_parameters(stored).content_size
                if announced != chunk.nbytes:
                    raise ValueError(f"a frame that announces {announced} bytes instead of {chunk.nbytes}")
                content = decompressor.decompress(stored, allow_extra_data=False)
            except zstd.ZstdError as error:
                raise ValueError(str(error)) from error
            chunk.view(np.uint8).reshape(-1, 4)[:] = np.frombuffer(content, np.uint8).reshape(4, -1).T
        if place != len(code):
            raise ValueError(f"{len(code)} bytes instead of {place}")

    def _zstd(self) -> Any:
        if reason := self.obstacle():
            raise SpecError(f"compressor lossless {reason}")
        import zstandard

        return zstandard


def _chunks(values: Vector) -> Iterator[Vector]:
    for start in range(0, len(values), _CHUNK):
        yield values[start : start + _CHUNK]
