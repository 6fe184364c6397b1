"""Collective operations without arithmetic: broadcasts, allgathers and barriers, of tensors and of objects."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hpcps.errors import SpecError
from hpcps.session.current import checked_rank, rank, session
from hpcps.session.pending import forget_calls, kept
from hpcps.session.reduction import BROADCAST, GATHER
from hpcps.torch.combining import combine
from hpcps.torch.compatibility import refuses_absent_arguments
from hpcps.torch.copies import bytes_of, on_host
from hpcps.torch.exchange import PendingTensor, begin, called, check_whole, checked, copied, named, sparse_error
from hpcps.torch.rows import PendingRows, begin_rows, in_words

_SMALLEST = 1 << 10


@refuses_absent_arguments
def broadcast(tensor: Tensor, root_rank: int, name: str | None = None) -> Tensor:
    """Return the tensor of one process in all processes.

    Args:
        tensor: a dense tensor of any type and device; of the same type and shape in all processes. The result is
            differentiable: the process gets the sum of the gradients of all.
        root_rank: the process whose tensor all get.
        name: the name of the tensor in all processes; see `push_pull`.

    Returns:
        A new tensor.

    Raises:
        SpecError: there is no such process, or the tensor cannot be exchanged.
        RunError: the processes give tensors of other types or shapes, or other processes as `root_rank`; the message
            names them and the tensor.
    """
    if checked(tensor).requires_grad and torch.is_grad_enabled():
        result: Tensor = _Broadcast.apply(tensor, root_rank, name)  # type: ignore[no-untyped-call]
        return result
    return _begin(copied(tensor), name, root_rank).finish()


@refuses_absent_arguments
def broadcast_async(tensor: Tensor, root_rank: int, name: str | None = None) -> int:
    """Begin a `broadcast`; return a handle for `synchronize` and `poll`."""
    return kept(_begin(copied(checked(tensor)), name, root_rank))


@refuses_absent_arguments
def broadcast_(tensor: Tensor, root_rank: int, name: str | None = None) -> Tensor:
    """Do a `broadcast` in place, and return the tensor."""
    return _begin(checked(tensor), name, root_rank).finish()


@refuses_absent_arguments
def broadcast_async_(tensor: Tensor, root_rank: int, name: str | None = None) -> int:
    """Begin a `broadcast` in place; return a handle. The tensor must not be used until `synchronize` returns."""
    return kept(_begin(checked(tensor), name, root_rank))


@refuses_absent_arguments
def broadcast_parameters(
    params: Mapping[str, Any] | Iterable[tuple[str, Tensor]], root_rank: int = 0, prefix: str = "broadcast/"
) -> None:
    """Overwrite tensors with those of one process.

    Args:
        params: a `state_dict()`, or `named_parameters()`.
        root_rank: the process whose values all get.
        prefix: what the names of the exchanged tensors begin with, in messages and traces.

    Raises:
        SpecError: there are no names, no such process, or tensors that cannot be exchanged.
    """
    pairs = params.items() if isinstance(params, Mapping) else named("broadcast_parameters", params)
    tensors = [(name, value) for name, value in pairs if isinstance(value, Tensor)]
    if pairs and not tensors:
        raise SpecError(
            "broadcast_parameters got no tensor: use broadcast_optimizer_state(optimizer) or broadcast_object(value)"
        )
    pending = [_begin(value, name, root_rank, prefix) for name, value in tensors]
    for each in pending:
        each.finish()


@refuses_absent_arguments
def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0, prefix: str = "") -> None:
    """Give the state of one process's optimizer to all, with its learning rate and other settings.

    Args:
        optimizer: the optimizer.
        root_rank: the process whose state all get.
        prefix: the name of the state in messages.
    """
    buffer = io.BytesIO()
    if rank() == root_rank:
        torch.save(optimizer.state_dict(), buffer)
    content = broadcast_object(buffer.getvalue(), root_rank, prefix or None)
    if rank() != root_rank:
        optimizer.load_state_dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=False))


@refuses_absent_arguments
def broadcast_object(obj: Any, root_rank: int = 0, name: str | None = None) -> Any:
    """Return the object of one process in all processes; it is pickled.

    Args:
        obj: the object; that of the other processes has no effect.
        root_rank: the process whose object all get.
        name: its name in messages.
    """
    own, root = f"object/{name}" if name else "object", rank() == root_rank
    data = pickle.dumps(obj) if root else b""
    length = int(_begin(torch.tensor(len(data)), f"{own}/length", root_rank).finish())
    # A power of two, so that objects of many sizes use few tensors.
    room = max(_SMALLEST, 1 << (length - 1).bit_length()) if length else _SMALLEST
    values = torch.zeros(room, dtype=torch.uint8)
    if root:
        values[:length] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    _begin(values, own, root_rank).finish()
    return obj if root else pickle.loads(values.numpy().tobytes()[:length])


@refuses_absent_arguments
def allgather(tensor: Tensor, name: str | None = None) -> Tensor:
    """Return the tensors of all processes one after another along the first dimension, in the order of the processes.

    One process, or one server, puts the result together and sends it to all.

    Args:
        tensor: a dense tensor of any type and device. Its first dimension may differ between the processes; one
            without dimensions counts as one row. The result is differentiable.
        name: the name of the tensor in all processes; see `push_pull`.

    Returns:
        A new tensor.

    Raises:
        SpecError: the tensor cannot be exchanged.
        RunError: the processes give tensors of other types, or with other dimensions after the first one.
    """
    if checked(tensor).requires_grad and torch.is_grad_enabled():
        result: Tensor = _Allgather.apply(tensor, name)  # type: ignore[no-untyped-call]
        return result
    return _begin_gather(tensor, name).finish()


@refuses_absent_arguments
def allgather_async(tensor: Tensor, name: str | None = None) -> int:
    """Begin an `allgather`; return a handle for `synchronize` and `poll`. The tensor may be changed at once."""
    return kept(_begin_gather(checked(tensor), name))


@refuses_absent_arguments
def allgather_object(obj: Any, name: str | None = None) -> list[Any]:
    """Return the objects of all processes, in their order, in all processes; they are pickled.

    Args:
        obj: the object of this process.
        name: its name in messages.
    """
    data = torch.frombuffer(bytearray(pickle.dumps(obj)), dtype=torch.uint8)
    pending = _begin_gather(data, f"object/{name}" if name else "object").pending
    return [pickle.loads(rows.tobytes()) for rows in pending.rows()]


@refuses_absent_arguments
def barrier() -> None:
    """Wait until all processes call this."""
    nothing = torch.zeros(1, dtype=torch.uint8)
    begin(nothing, nothing, "barrier/", "sum").finish()


@refuses_absent_arguments
def join(device: int = -1) -> int:
    """Wait until all processes call this; until then, the others go on without this one, which has no data left.

    This process first waits for its own exchanges. It counts as zeros in a sum and in a mean, which divides by the
    number of all processes. In a minimum, a maximum and a product it does not count, and in an allgather it has no
    rows. Rules, attacks, broadcasts and the first step of an asynchronous optimizer are errors. The model of this
    process does not change meanwhile: take that of the process that joined last, with
    `broadcast_parameters(model.state_dict(), root_rank=join())`.

    Args:
        device: that of Horovod's tensors of zeros; there are none here, so that it has no effect.

    Returns:
        The rank of the process that joined last.

    Raises:
        RunError: a process has ended without a call of this, or was lost; the processes exchange a tensor that needs
            all of them; or this process has begun a step and not ended it.
    """
    last = session().join()
    forget_calls()
    return last


class _Broadcast(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, root_rank: int, name: str | None) -> Tensor:
        ctx.root, ctx.name = rank() == root_rank, name
        return broadcast(tensor.detach(), root_rank, name)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        total = combine(gradient, "sum", ctx.name and f"broadcast/{ctx.name}.gradient")
        return total if ctx.root else torch.zeros_like(total), None, None


class _Allgather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, name: str | None) -> Tensor:
        pending = _begin_gather(tensor, name)
        result = pending.finish()
        ctx.first, ctx.shape = sum(pending.numbers[: rank()]), tensor.shape
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        total = combine(gradient, "sum")  # without a name, because its number of rows may vary
        rows = ctx.shape[0] if ctx.shape else 1
        return total[ctx.first : ctx.first + rows].reshape(ctx.shape), None


def _begin(output: Tensor, name: str | None, root_rank: int, prefix: str = "broadcast/") -> PendingTensor:
    """Begin a broadcast in place."""
    root = checked_rank(root_rank, called(name))
    # Processes with different roots must declare different tensors.
    own = name and in_words(f"{prefix}{name}", output.shape, output.dtype)
    return begin(output, output, own, BROADCAST, given=rank() == root, source=f" of rank {root}")


@dataclass(slots=True)
class _PendingGather:
    """An allgather that the script has begun.

    Attributes:
        pending: the exchange of its rows.
        like: a tensor of this process.
        numbers: the numbers of rows of the processes, when it is finished.
    """

    pending: PendingRows
    like: Tensor
    numbers: Sequence[int] = ()

    def done(self) -> bool:
        """Return whether its result has come."""
        return self.pending.done()

    def finish(self) -> Tensor:
        """Wait for the result, and return all rows."""
        found = self.pending.rows()
        self.numbers, like = [len(rows) for rows in found], self.like
        result = torch.empty((sum(self.numbers), *like.shape[1:]), dtype=like.dtype)
        bytes_of(result)[:] = np.concatenate([rows.reshape(-1) for rows in found])
        return result.to(like.device)


def _begin_gather(tensor: Tensor, name: str | None) -> _PendingGather:
    """Begin an allgather."""
    check_whole(name, tensor)
    if tensor.layout is not torch.strided:
        raise sparse_error(name)
    tensor = tensor.detach().reshape(1) if not tensor.dim() else tensor.detach()
    shape = tensor.shape[1:]
    form = f"unnamed {tensor.dtype} [rows, {', '.join(map(str, shape))}] {GATHER}"
    own = in_words(f"allgather/{name}", ("rows", *shape), tensor.dtype) if name else ""
    return _PendingGather(begin_rows(on_host(tensor).clone(), own, form), tensor)
