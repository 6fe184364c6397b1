"""What travels as rows: an allgather, whose processes give different numbers of them, and a sparse tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcps.errors import SpecError
from hpcps.session.current import session
from hpcps.session.elements import Bytes, reduce
from hpcps.session.pending import PendingExchange, free_name, number_of_call, take_name
from hpcps.session.reduction import GATHER, Reduction
from hpcps.session.tensors import Declaration
from hpcps.torch.compression import Compression, NoneCompressor
from hpcps.torch.copies import NAMES, bytes_of, on_host
from hpcps.torch.exchange import called, check_whole, declared, type_error

_INDEX = 8
"""Bytes of a number in an index."""
_TILE = 1 << 20
"""Bytes of each process that are combined at a time."""


@dataclass(slots=True)
class PendingRows(PendingExchange):
    """An exchange of rows that the script has begun.

    Attributes:
        found: gets the rows of each process, as bytes.
    """

    found: list[Bytes]

    def rows(self) -> list[Bytes]:
        """Wait for the result, and return the rows of each process, as bytes."""
        self.wait()
        return self.found


def begin_rows(rows: Tensor, name: str, form: str, priority: int = 0) -> PendingRows:
    """Begin an exchange of the rows of all processes.

    Args:
        rows: the rows `[n, ...]` of this process, of a tensor on the host. They must not change before the end.
        name: their name; empty for a name from their form.
        form: what is equal in all processes that do the same without names.
        priority: how urgent they are; larger numbers are sent first.
    """
    unnamed = "" if name else free_name(form)
    row = torch.empty((1, *rows.shape[1:]), dtype=rows.dtype, device="meta")
    declaration = declared(name or unnamed, row, GATHER)
    found: list[Bytes] = []
    values = bytes_of(rows).reshape(len(rows), row.nbytes)
    call = 0 if name else number_of_call(form)
    exchange = session().start(declaration, values, found, call, priority=priority)
    if unnamed:
        take_name(unnamed)
    return PendingRows(exchange, unnamed, found)


def in_words(name: str, shape: Sequence[object], dtype: torch.dtype) -> str:
    """Return a name with the form of its tensor: the models of a script may have equal names and other shapes."""
    return f"{name} {tuple(shape)} {dtype}"


def begin_sparse(
    output: Tensor,
    name: str | None,
    reduction: Reduction,
    compression: type[NoneCompressor] = Compression.none,
    priority: int = 0,
) -> PendingSparse:
    """Begin to combine a sparse tensor in place: its indices and their values travel.

    Args:
        output: the tensor, in coordinate format. It gets the result, which has the indices of all processes.
        name: its name; None for a name from its type and shape.
        reduction: the mean or the sum.
        compression: what its values are converted to.
        priority: see `begin_rows`.

    Raises:
        SpecError: it has another format, or a rule or another operation is to combine it.
    """
    check_sparse(output, name, reduction)
    return _begin_sparse(output, output, name, reduction, compression, priority)


def begin_gradient(
    parameter: Tensor,
    name: str,
    reduction: Reduction,
    compression: type[NoneCompressor],
    factor: float,
    priority: int = 0,
) -> PendingSparse:
    """Begin to combine the gradient of a parameter, divided by a factor, as the rows that it has; see `begin_sparse`.

    The gradient may be dense, or None, which is not the same as one without rows. The result is a new gradient, which
    is None only if it is None in all processes.
    """
    gradient = parameter.grad
    if gradient is not None and (gradient.layout is torch.strided or gradient.sparse_dim() != 1):
        gradient = gradient.to_dense().to_sparse(1)
    if gradient is not None and factor != 1.0:
        gradient = gradient.detach().coalesce() / factor
    pending = _begin_sparse(gradient, parameter, name, reduction, compression, priority)
    pending.factor = factor
    return pending


def check_sparse(tensor: Tensor, name: str | None, reduction: Reduction) -> None:
    """Check that a sparse tensor can be combined.

    Raises:
        SpecError: it has another format, or a rule or another operation is to combine it.
    """
    if tensor.layout is torch.strided:
        raise SpecError(f"{called(name)} is dense: use allreduce_async, or to_sparse()")
    if tensor.layout is not torch.sparse_coo or not tensor.sparse_dim():
        which = "no index" if tensor.layout is torch.sparse_coo else f"the layout {tensor.layout}"
        raise SpecError(f"{called(name)} is sparse, with {which}: use to_dense(), or to_dense().to_sparse()")
    if reduction not in ("mean", "sum"):
        raise SpecError(
            f"{called(name)} is sparse, which the mean and the sum combine; a rule, a compressor or another operation "
            "takes all of its values: use to_dense()"
        )


@dataclass(slots=True)
class PendingSparse:
    """An exchange of a sparse tensor that the script has begun.

    Attributes:
        pending: the exchange of its rows.
        like: a tensor of its shape, type and device: the one that `finish` overwrites, or the parameter of a gradient.
        indices: the number of dimensions that an index has.
        dtype: the type of the values that travel.
        operation: how they are combined.
        factor: what the result is multiplied by.
    """

    pending: PendingRows
    like: Tensor
    indices: int
    dtype: torch.dtype
    operation: str
    factor: float = 1.0

    def done(self) -> bool:
        """Return whether its result has come."""
        return self.pending.done()

    def finish(self) -> Tensor:
        """Wait for the result, write it to the tensor, and return this."""
        result = self.result()
        assert result is not None, "this process has given one"
        with torch.no_grad():
            self.like.copy_(result)
        return self.like

    def result(self) -> Tensor | None:
        """Wait for the result, and return it, multiplied by the factor, as a new tensor; None if no process gave one.

        The arithmetic is that of an aggregator, on the values of all indices that a process has given: the result has
        the same bits as that of dense tensors.
        """
        shape, width = self.like.shape, _INDEX * self.indices
        every = self.pending.rows()
        if not any(map(len, every)):
            return None
        given = [rows[1:] for rows in every]  # the first one says that the process gives a tensor
        keys = [_keys(rows[:, :width].copy().view(np.int64), shape) for rows in given]
        found, inverse = np.unique(np.concatenate(keys), return_inverse=True)
        places = np.split(inverse, np.cumsum(list(map(len, keys)))[:-1])  # those of a process are in order
        values = torch.empty((len(found), *shape[self.indices :]), dtype=self.dtype)
        row = prod(shape[self.indices :]) * self.dtype.itemsize
        out, step = bytes_of(values).reshape(len(found), row), max(1, _TILE // max(1, row))
        for start in range(0, len(found), step):
            whole = np.zeros((len(given), len(out[start : start + step]), row), np.uint8)
            for of_process, mine, rows in zip(whole, places, given, strict=True):
                low, high = np.searchsorted(mine, (start, start + step))
                of_process[mine[low:high] - start] = rows[low:high, width:]
            parts = [*whole.reshape(len(given), -1)]
            reduce(parts, NAMES[self.dtype], self.operation, out[start : start + step].reshape(-1))
        indices = torch.from_numpy(np.stack(np.unravel_index(found, shape[: self.indices])))
        result = torch.sparse_coo_tensor(
            indices, values.to(self.like.dtype), shape, check_invariants=False, is_coalesced=True
        )
        return (result if self.factor == 1.0 else result * self.factor).to(self.like.device)


def _begin_sparse(
    tensor: Tensor | None,
    like: Tensor,
    name: str | None,
    reduction: Reduction,
    compression: type[NoneCompressor],
    priority: int,
) -> PendingSparse:
    """Begin the exchange of the rows of a tensor: an index, then its values. The first row says that there is one."""
    assert isinstance(reduction, str), "a rule takes dense tensors"
    check_whole(name, like)
    if like.dtype not in NAMES:
        raise type_error(name, like.dtype)
    known = name or f"unnamed {like.dtype} {list(like.shape)}"
    Declaration(known, NAMES[like.dtype], (tuple(like.shape),), reduction).check()
    given = _without_rows(like) if tensor is None else tensor.detach().coalesce()
    values, width = on_host(compression.compress(given.values())[0]), _INDEX * given.sparse_dim()
    rows = np.full((1 + len(values), width + prod(values.shape[1:]) * values.dtype.itemsize), 0xFF, np.uint8)
    rows[1:, :width] = bytes_of(on_host(given.indices().T)).reshape(len(values), width)
    rows[1:, width:] = bytes_of(values).reshape(len(values), rows.shape[1] - width)
    form = f"{in_words('sparse', like.shape, values.dtype)} {reduction}, indices of {given.sparse_dim()}"
    sent = torch.from_numpy(rows if tensor is not None else rows[:0])
    pending = begin_rows(sent, f"{form} {name}" if name else "", f"unnamed {form}", priority)
    return PendingSparse(pending, like, given.sparse_dim(), values.dtype, reduction)


def _without_rows(like: Tensor) -> Tensor:
    """Return a sparse tensor of a shape and type, without rows."""
    indices, values = torch.empty((1, 0), dtype=torch.int64), torch.empty((0, *like.shape[1:]), dtype=like.dtype)
    return torch.sparse_coo_tensor(indices, values, like.shape, check_invariants=False, is_coalesced=True)


def _keys(indices: NDArray[np.int64], shape: Sequence[int]) -> NDArray[np.int64]:
    """Return one number for each index `[n, dimensions of an index]`."""
    found: NDArray[np.int64] = np.ravel_multi_index(tuple(indices.T), tuple(shape[: indices.shape[1]]))
    return found
