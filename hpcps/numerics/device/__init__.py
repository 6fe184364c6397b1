"""Triton kernels of the rules, which combine updates on the GPU where they are.

They need Triton, which PyTorch's CUDA builds install. Sums are float64 in a fixed order, so equal calls on a GPU give
equal results; they agree with the host's results up to rounding. Nothing here imports Triton before a kernel is used.
"""

from __future__ import annotations

import os
import warnings
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

TYPES = ("torch.float16", "torch.bfloat16", "torch.float32", "torch.float64")
"""The types that kernels read; each value is converted to float32 when it is loaded."""


@lru_cache(maxsize=1)
def installed() -> bool:
    """Return whether Triton is installed."""
    return find_spec("triton") is not None


def interpreted() -> bool:
    """Return whether Triton's interpreter runs the kernels, on tensors in host memory: a means to test and debug."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def supports(values: Any) -> bool:
    """Return whether kernels can read these values: a floating-point tensor on a GPU for which Triton works here."""
    if not hasattr(values, "detach") or str(values.dtype) not in TYPES:
        return False
    there = values.is_cuda or (interpreted() and values.device.type == "cpu")
    return there and installed() and ready(str(values.device))


@lru_cache(maxsize=16)
def ready(device: str) -> bool:
    """Run a small kernel on the device at the first call; return whether it worked."""
    try:
        from hpcps.numerics.device.packing import trial

        trial(device)
    except Exception as error:  # for example, Triton finds no C compiler, or does not know this GPU
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        message = f"rules run on the host, not on {device}: Triton's kernels do not work here: {reason}"
        warnings.warn(message, RuntimeWarning, stacklevel=3)
        return False
    return True
