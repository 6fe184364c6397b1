"""push_pull: combines a tensor with those of the other processes."""

from __future__ import annotations

from math import isfinite
from typing import Any

import torch
from torch import Tensor

from hpcps.errors import SpecError
from hpcps.session.outbox import checked_priority
from hpcps.session.pending import kept, synchronize
from hpcps.session.reduction import Reduction, operation_of
from hpcps.torch.compression import Compressing, Compression, NoneCompressor, conversion
from hpcps.torch.exchange import PendingTensor, begin, called, checked, copied, declared, reduction_of
from hpcps.torch.rows import PendingSparse, begin_sparse


def declare(name: str, tensor: Tensor | None = None, *, average: bool = True, rule: object = None) -> None:
    """Declare a tensor before its first exchange. All processes declare the same tensors in the same order.

    An exchange declares a tensor that is not declared. Declaring is for scripts whose first exchanges may be in another
    order in each process. Without a tensor, as in scripts of BytePS, type and shape are not known, and the first
    exchange declares it.

    Args:
        name: its name.
        tensor: a dense tensor of the same type and shape; the first exchange of a sparse one declares it.
        average: whether the mean is exchanged, else the sum.
        rule: the rule that combines the tensors instead, see `push_pull`.

    Raises:
        SpecError: it was declared in another way, or cannot be combined in this way.
    """
    reduction = reduction_of(operation_of(average), rule)
    if tensor is not None:
        declared(name, tensor, reduction)


def push_pull_async(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    *,
    rule: object = None,
) -> int:
    """Begin to combine a tensor with those of the other processes; return a handle for `synchronize` and `poll`.

    See `push_pull`. The tensor may be changed as soon as this returns.
    """
    urgency, copy = _order(version, priority), copied(checked(tensor))
    return kept(begun(copy, name, reduction_of(operation_of(average), rule), priority=urgency))


def push_pull_async_inplace(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    *,
    rule: object = None,
) -> int:
    """Begin to combine a tensor in place; return a handle. The tensor must not be used until `synchronize` returns."""
    reduction = reduction_of(operation_of(average), rule)
    return kept(begun(checked(tensor), name, reduction, priority=_order(version, priority)))


def push_pull_inplace(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    *,
    rule: object = None,
) -> Tensor:
    """Combine a tensor in place, and return it; see `push_pull`."""
    result: Tensor = synchronize(push_pull_async_inplace(tensor, average, name, version, priority, rule=rule))
    return result


def push_pull(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    version: int = 0,
    priority: int = 0,
    *,
    compression: Compressing = Compression.none,
    rule: object = None,
) -> Tensor:
    """Return the mean or sum of the tensors that all processes give under the same name, or what a rule makes of them.

    Args:
        tensor: a tensor of any device; of the same type and shape in all processes. The mean is differentiable, and so
            is the sum: the gradient is exchanged in the same way. Of a sparse tensor in coordinate format only the
            indices and their values travel; the result is sparse, with the indices of all processes.
        average: whether to return the mean, else the sum; the mean is for floats.
        name: the name of the tensor in all processes; None: a name from its type and shape. Without names, all
            processes must begin and synchronize exchanges of one type and shape in the same order.
        version: 0; BytePS's scripts may give it.
        priority: how urgent it is: a tensor of more than 64 KB that waits for the network is overtaken by those with
            larger numbers, such as the gradients of the first layers, which the next step needs first. It may differ
            between calls and between processes.
        compression: `Compression.fp16` exchanges it as float16; see `Compressing` for compressors of hpcps.
        rule: a rule of hpcps in place of the mean: its name, its table, such as `{"kind": "trimmed_mean", "f": 1}`, or
            an object. It combines in float32, and counts values that are not finite as zero.

    Returns:
        A new tensor.

    Raises:
        SpecError: the tensor or the rule cannot be used.
        RunError: the processes give different tensors, synchronize tensors without a name in orders that would mix
            them, or one of them has ended; the message names it and the tensor.
    """
    return combine(tensor, operation_of(average), name, compression, rule, _order(version, priority))


def combine(
    tensor: Tensor,
    operation: str,
    name: str | None = None,
    compression: Compressing = Compression.none,
    rule: object = None,
    priority: int = 0,
) -> Tensor:
    """Return what an operation makes of the tensors of all processes; see `push_pull`.

    Only the mean and the sum are differentiable: the result of another operation, or of a rule, has no gradient.
    """
    if checked(tensor).requires_grad and torch.is_grad_enabled() and rule is None and operation in ("mean", "sum"):
        result: Tensor = _Combine.apply(tensor, operation, name, compression, priority)  # type: ignore[no-untyped-call]
        return result
    copy = copied(tensor)
    reduction = reduction_of(operation, rule, compression=compression)
    return begun(copy, name, reduction, conversion(compression), priority).finish()


def begun(
    output: Tensor,
    name: str | None,
    reduction: Reduction,
    compression: type[NoneCompressor] = Compression.none,
    priority: int = 0,
) -> PendingTensor | PendingSparse:
    """Begin to combine a dense or a sparse tensor in place."""
    if output.layout is torch.strided:
        return begin(output, output, name, reduction, compression=compression, priority=priority)
    return begin_sparse(output, name, reduction, compression, priority)


def scaled(
    output: Tensor,
    name: str | None,
    reduction: Reduction,
    factors: tuple[float, float],
    compression: type[NoneCompressor] = Compression.none,
) -> PendingTensor | PendingSparse:
    """Begin to combine a tensor in place, and multiply it before and after by factors.

    Raises:
        SpecError: a factor is no finite number, or is for a tensor of integers.
    """
    if factors == (1.0, 1.0):
        return begun(output, name, reduction, compression)
    check_factors(output, name, factors)
    with torch.no_grad():
        output.mul_(factors[0])
    pending = begun(output, name, reduction, compression)
    pending.factor = factors[1]
    return pending


def check_factors(tensor: Tensor, name: str | None, factors: tuple[float, float]) -> None:
    """Check what a tensor is multiplied by before and after an operation.

    Raises:
        SpecError: a factor is no finite number, or is for a tensor of integers.
    """
    for which, factor in zip(("prescale_factor", "postscale_factor"), factors, strict=True):
        if isinstance(factor, bool) or not isinstance(factor, int | float) or not isfinite(factor):
            raise SpecError(f"{which} is {factor!r}: give a finite number")
        if factor != 1.0 and not tensor.is_floating_point():
            raise SpecError(f"{called(name)} is {tensor.dtype}: {which} is for floats: use tensor.float()")


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: Tensor, operation: str, name: str | None, compression: Compressing, priority: int
    ) -> Tensor:
        ctx.operation, ctx.name, ctx.compression, ctx.priority = operation, name, compression, priority
        return combine(tensor.detach(), operation, name, compression, priority=priority)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None, None]:
        name = ctx.name and f"{ctx.name}.gradient"
        result = combine(gradient, ctx.operation, name, ctx.compression, priority=ctx.priority)
        return result, None, None, None, None


def _order(version: object, priority: object) -> int:
    """Return the priority of an exchange, from BytePS's arguments for the order of exchanges.

    Raises:
        SpecError: the priority is no whole number, or the version is not 0.
    """
    if version != 0:
        raise SpecError(f"version is {version!r}: the exchanges of a tensor go one after another: leave it out")
    return checked_priority(priority)
