"""A compressor: 16-bit integers in steps of a fixed size."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from hpcps.compression import Compressor


class Fixed(Compressor):
    """Rounds each value to a multiple of `step`, up to 32767 steps."""

    kind: Literal["fixed"] = "fixed"
    granularity: ClassVar[str] = "coordinate"
    step: float = Field(1e-5, gt=0, description="The distance between two values.")

    def most_bytes(self, n):
        """Return the size of n values."""
        return 2 * n

    def write(self, values, code, kept):
        """Encode; the smallest integer stands for what is not finite."""
        steps = np.clip(np.rint(values / np.float32(self.step)), -32767, 32767)
        code.view(np.int16)[:] = np.where(np.isfinite(values), steps, -32768)
        return len(code)

    def read(self, code, values):
        """Decode, or refuse another size."""
        if len(code) != 2 * len(values):
            raise ValueError(f"{len(code)} bytes for {len(values)} values")
        steps = code.view(np.int16)
        values[:] = np.where(steps == -32768, np.nan, steps * np.float32(self.step))
