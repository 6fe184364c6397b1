"""Copies tensors of torch to and from the buffers of a session."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hpcps.session.elements import Bytes


class TensorCopies:
    """Copies small tensors, many in one call: a call for each would take longer than the copies."""

    def view(self, values: Bytes, dtype: str, like: Tensor) -> Tensor:
        """Return bytes as a tensor of a type, with the shape of another tensor."""
        return torch.from_numpy(values).view(getattr(torch, dtype)).view(like.shape)

    def copy(self, targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
        """Copy each source to its target; the types and devices may differ."""
        if len(targets) > 1:
            torch._foreach_copy_(list(targets), list(sources))
        elif targets:
            targets[0].copy_(sources[0])


def bytes_of(tensor: Tensor) -> Bytes:
    """Return the memory of a contiguous tensor on the host."""
    found: Bytes = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return found
