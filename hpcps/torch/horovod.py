"""Horovod's names of `push_pull`, with its arguments `average` and `op`."""

from __future__ import annotations

from torch import Tensor

from hpcps.errors import SpecError
from hpcps.torch.compression import Compressing, Compression
from hpcps.torch.exchange import push_pull, push_pull_async, push_pull_async_inplace, synchronize

Average, Sum = "mean", "sum"
"""The operations of `op`."""


def averages(average: bool | None, op: str | None) -> bool:
    """Return whether the mean is meant; the default is the mean.

    Raises:
        SpecError: both are given, or there is no such operation.
    """
    if average is not None and op is not None:
        raise SpecError("give op or average, not both")
    if op not in (None, Average, Sum):
        raise SpecError(f"op is {op!r}: use Average or Sum, or a rule of hpcps with rule=")
    return average is None or bool(average) if op is None else op == Average


def allreduce(
    tensor: Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressing = Compression.none,
    op: str | None = None,
    *,
    rule: object = None,
) -> Tensor:
    """Return the mean (`op=Average`) or sum (`op=Sum`) of the tensors of all processes; see `push_pull`."""
    return push_pull(tensor, averages(average, op), name, compression=compression, rule=rule)


def allreduce_async(tensor: Tensor, average: bool | None = None, name: str | None = None, op: str | None = None) -> int:
    """Begin an `allreduce`; return a handle for `synchronize` and `poll`."""
    return push_pull_async(tensor, averages(average, op), name)


def allreduce_(tensor: Tensor, average: bool | None = None, name: str | None = None, op: str | None = None) -> Tensor:
    """Do an `allreduce` in place, and return the tensor."""
    return synchronize(allreduce_async_(tensor, average, name, op))


def allreduce_async_(
    tensor: Tensor, average: bool | None = None, name: str | None = None, op: str | None = None
) -> int:
    """Begin an `allreduce` in place; return a handle. The tensor must not be used until `synchronize` returns."""
    return push_pull_async_inplace(tensor, averages(average, op), name)
