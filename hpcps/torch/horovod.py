"""Horovod's names of `push_pull`, with its arguments `average` and `op`, and what it tells of its libraries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

from hpcps.errors import SpecError
from hpcps.session.current import session
from hpcps.session.pending import kept, synchronize
from hpcps.session.reduction import operation_of
from hpcps.torch.combining import check_factors, combine, scaled
from hpcps.torch.compatibility import refuses_absent_arguments
from hpcps.torch.compression import Compressing, Compression, conversion
from hpcps.torch.exchange import PendingTensor, checked, copied, reduction_of
from hpcps.torch.rows import PendingSparse, check_sparse

Average, Sum, Min, Max, Product = "mean", "sum", "min", "max", "product"
"""The operations of `op`."""
_OPERATIONS = (Average, Sum, Min, Max, Product)


def operation(average: bool | None, op: str | None) -> str:
    """Return the operation that is meant; the default is the mean.

    Raises:
        SpecError: both arguments are given, or there is no such operation.
    """
    if average is not None and op is not None:
        raise SpecError("give op or average, not both")
    if op is None:
        return operation_of(average is None or average)
    if op not in _OPERATIONS:
        raise SpecError(f"op is {op!r}: use Average, Sum, Min, Max or Product, or a rule of hpcps with rule=")
    return op


@refuses_absent_arguments
def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressing = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    *,
    rule: object = None,
) -> Tensor:
    """Return the mean of the tensors of all processes, or what another operation or a rule makes of them.

    Args:
        tensor: see `push_pull`. The result of `Min`, `Max`, `Product` or a rule has no gradient.
        average: another way to say `op=Average` or `op=Sum`.
        name: see `push_pull`.
        compression: see `push_pull`.
        op: `Average`, `Sum`, `Min`, `Max` or `Product`; the default is the mean. All but the mean take integers.
        prescale_factor: what the tensor is multiplied by before the operation.
        postscale_factor: what the result is multiplied by.
        rule: see `push_pull`.

    Raises:
        SpecError, RunError: see `push_pull`.
    """
    check_factors(checked(tensor), name, (prescale_factor, postscale_factor))
    given = tensor if prescale_factor == 1.0 else tensor * prescale_factor
    result = combine(given, operation(average, op), name, compression, rule)
    return result if postscale_factor == 1.0 else result * postscale_factor


@refuses_absent_arguments
def allreduce_async(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin an `allreduce`; return a handle for `synchronize` and `poll`."""
    copy, factors = copied(checked(tensor)), (prescale_factor, postscale_factor)
    return kept(scaled(copy, name, reduction_of(operation(average, op), None), factors))


@refuses_absent_arguments
def allreduce_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Tensor:
    """Do an `allreduce` in place, and return the tensor."""
    handle = allreduce_async_(tensor, average, name, op, prescale_factor, postscale_factor)
    result: Tensor = synchronize(handle)
    return result


@refuses_absent_arguments
def allreduce_async_(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin an `allreduce` in place; return a handle. The tensor must not be used until `synchronize` returns."""
    factors = (prescale_factor, postscale_factor)
    return kept(scaled(checked(tensor), name, reduction_of(operation(average, op), None), factors))


@refuses_absent_arguments
def sparse_allreduce_async(tensor: Tensor, name: str | None = None, op: str | None = None) -> Callable[[], Tensor]:
    """Begin an `allreduce` of a sparse tensor, by `Average` or `Sum`; return a function that returns its result."""
    checked(tensor)
    check_sparse(tensor, name, operation(None, op))
    return scaled(copied(tensor), name, operation(None, op), (1.0, 1.0)).finish


@dataclass(frozen=True, slots=True)
class _PendingGroup:
    """Exchanges of several tensors with one handle."""

    members: Sequence[PendingTensor | PendingSparse]

    def done(self) -> bool:
        return all(member.done() for member in self.members)

    def finish(self) -> list[Tensor]:
        return [member.finish() for member in self.members]


@refuses_absent_arguments
def grouped_allreduce(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Compressing = Compression.none,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Return the `allreduce` of each of several tensors, which travel at the same time."""
    factors = (prescale_factor, postscale_factor)
    if torch.is_grad_enabled() and any(checked(tensor).requires_grad for tensor in tensors):
        names = [name and f"{name}.{k}" for k in range(len(tensors))]
        pairs = zip(tensors, names, strict=True)
        return [allreduce(tensor, average, own, compression, op, *factors) for tensor, own in pairs]
    copies = [copied(checked(tensor)) for tensor in tensors]
    return _begin_group(copies, average, name, op, factors, compression).finish()


@refuses_absent_arguments
def grouped_allreduce_async(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin a `grouped_allreduce`; return one handle, of which `synchronize` returns the list of results."""
    copies = [copied(checked(tensor)) for tensor in tensors]
    return kept(_begin_group(copies, average, name, op, (prescale_factor, postscale_factor)))


@refuses_absent_arguments
def grouped_allreduce_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Tensor]:
    """Do a `grouped_allreduce` in place, and return the tensors."""
    return _begin_group(tensors, average, name, op, (prescale_factor, postscale_factor)).finish()


@refuses_absent_arguments
def grouped_allreduce_async_(
    tensors: Sequence[Tensor],
    average: bool | None = None,
    name: str | None = None,
    op: str | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> int:
    """Begin a `grouped_allreduce` in place; return one handle."""
    return kept(_begin_group(tensors, average, name, op, (prescale_factor, postscale_factor)))


def _begin_group(
    outputs: Sequence[Tensor],
    average: bool | None,
    name: str | None,
    op: str | None,
    factors: tuple[float, float],
    compression: Compressing = Compression.none,
) -> _PendingGroup:
    reduction, converts = reduction_of(operation(average, op), None, compression=compression), conversion(compression)
    names = [name and f"{name}.{k}" for k in range(len(outputs))]
    pairs = zip(outputs, names, strict=True)
    return _PendingGroup([scaled(checked(output), own, reduction, factors, converts) for output, own in pairs])


def mpi_built() -> bool:
    """Return whether hpcps can use MPI: whether mpi4py is installed."""
    return find_spec("mpi4py") is not None


def mpi_enabled() -> bool:
    """Return whether MPI connects the processes."""
    return "mpi" in session().facts


def _unused() -> bool:
    """Return False: hpcps exchanges tensors without this library."""
    return False


gloo_built = gloo_enabled = nccl_built = ddl_built = ccl_built = mlsl_built = cuda_built = rocm_built = _unused
"""Whether a library of Horovod exchanges tensors: none of them does. Tensors of a GPU pass through the host."""
