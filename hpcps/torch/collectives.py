"""Broadcasts: all processes get the parameters, the state of an optimizer or an object of one of them."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from hpcps.errors import SpecError
from hpcps.torch.exchange import PendingTensor, begin, named
from hpcps.torch.state import rank, size

_SMALLEST = 1 << 10


def broadcast_parameters(params: Mapping[str, Any] | Iterable[tuple[str, Tensor]], root_rank: int = 0) -> None:
    """Overwrite tensors with those of one process.

    Args:
        params: a `state_dict()`, or `named_parameters()`.
        root_rank: the process whose values all get.

    Raises:
        SpecError: there are no names, no such process, or tensors that cannot be exchanged.
    """
    pairs = params.items() if isinstance(params, Mapping) else named("broadcast_parameters", params)
    tensors = [(name, value) for name, value in pairs if isinstance(value, Tensor)]
    if pairs and not tensors:
        raise SpecError(
            "broadcast_parameters got no tensor: use broadcast_optimizer_state(optimizer) or broadcast_object(value)"
        )
    # Several models of a script may have parameters of the same names and other shapes.
    all_named = [(f"broadcast/{name} {tuple(value.shape)} {value.dtype}", value) for name, value in tensors]
    pending = [_begin(value, name, root_rank) for name, value in all_named]
    for each in pending:
        each.finish()


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """Give the state of one process's optimizer to all, with its learning rate and other settings."""
    buffer = io.BytesIO()
    if rank() == root_rank:
        torch.save(optimizer.state_dict(), buffer)
    content = broadcast_object(buffer.getvalue(), root_rank)
    if rank() != root_rank:
        optimizer.load_state_dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=False))


def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Return the object of one process in all processes; it is pickled.

    Args:
        obj: the object; that of the other processes has no effect.
        root_rank: the process whose object all get.
        name: its name in messages.
    """
    prefix = f"broadcast_object/{name}" if name else "broadcast_object"
    root = rank() == root_rank
    data = pickle.dumps(obj) if root else b""
    length = int(_begin(torch.tensor(len(data)), f"{prefix}/length", root_rank).finish())
    # A power of two, so that objects of many sizes use few tensors.
    room = max(_SMALLEST, 1 << (length - 1).bit_length()) if length else _SMALLEST
    values = torch.zeros(room, dtype=torch.uint8)
    if root:
        values[:length] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    _begin(values, f"{prefix}/{room}", root_rank).finish()
    return obj if root else pickle.loads(values.numpy().tobytes()[:length])


def _begin(tensor: Tensor, name: str, root_rank: int) -> PendingTensor:
    if root_rank not in range(size()):
        raise SpecError(f"root_rank is {root_rank}: the ranks go from 0 to {size() - 1}")
    return begin(tensor, tensor, _named(name, root_rank), "sum", given=rank() == root_rank)


def _named(name: str, root_rank: int) -> str:
    """Return the name of a tensor with its root, so that processes with different roots declare different tensors."""
    return f"{name} of rank {root_rank}"
