"""Copies tensors of torch to and from the buffers of a session."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor

from hpcps.session.elements import COPIED, TYPES, Bytes
from hpcps.session.participant import Copies


class TensorCopies(Copies):
    """Copies tensors, many in one call: a call for each would take longer than the copies."""

    def views(self, values: Bytes, dtype: str, like: Sequence[Tensor]) -> list[Tensor]:
        if not values.flags.writeable:
            # torch has no tensors that are read-only, and warns; nothing writes to these.
            memory = (ctypes.c_uint8 * values.nbytes).from_address(values.ctypes.data)
            memory.owner = values  # type: ignore[attr-defined]  # it has only the address, and the tensors may live long
            values = np.asarray(memory)
        with torch.inference_mode(False):  # later exchanges use them too
            flat = torch.from_numpy(values).view(getattr(torch, dtype))
            parts = torch.split(flat, [each.numel() for each in like])
            return [part.view(each.shape) for part, each in zip(parts, like, strict=True)]

    @torch.no_grad()
    def copy(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        if targets:
            # This may be another thread than that of the script, and the inference mode belongs to a thread.
            with torch.inference_mode() if targets[0].is_inference() else nullcontext():
                torch._foreach_copy_(list(targets), list(sources))


def on_host(tensor: Tensor) -> Tensor:
    """Return a tensor as `bytes_of` takes it: itself, if it is such a tensor."""
    return tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()


NAMES = {getattr(torch, name): name for name in (*TYPES, *COPIED) if hasattr(torch, name)}
"""The names of the types that can be exchanged, some of them only by copies."""


def bytes_of(tensor: Tensor) -> Bytes:
    """Return the memory of a contiguous tensor on the host, whose values are stored as they are."""
    # A contiguous tensor of one element may have any stride.
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))
    found: Bytes = flat.view(torch.uint8).numpy()
    return found
