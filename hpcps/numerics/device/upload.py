"""Copies of small tables of the host to a device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def upload(values: NDArray[Any], device: torch.device | str) -> torch.Tensor:
    """Return a copy of an array on a device, for the current stream, without waiting for the stream's earlier work.

    A table that is kept for later calls must not be made in this way: these may be on another stream.
    """
    host = torch.from_numpy(np.array(values))
    if torch.device(device).type != "cuda":
        return host.to(device)
    try:
        # Torch waits for the whole stream after a copy from memory that is not pinned. It reuses the pinned memory
        # only after the copy.
        return host.pin_memory().to(device, non_blocking=True)
    except RuntimeError:  # there is no pinned memory
        return host.to(device)
