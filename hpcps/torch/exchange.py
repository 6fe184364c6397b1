"""push_pull: combines a tensor with those of the other processes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor

from hpcps.errors import RunError, SpecError
from hpcps.session import tensors
from hpcps.session.elements import TYPES
from hpcps.session.reduction import Reduction, table_of
from hpcps.session.tensors import Declaration, TensorExchange
from hpcps.torch.compression import Compressing, Compression, NoneCompressor, conversion
from hpcps.torch.copies import NAMES, bytes_of
from hpcps.torch.state import check_world, session

_handles: dict[int, PendingTensor] = {}
_numbers = count()
_unnamed: set[str] = set()
_calls: Counter[str] = Counter()
"""How often the script has given a tensor without a name, by the type, the shape and the reduction."""


@dataclass(slots=True)
class PendingTensor:
    """An exchange of a tensor of torch.

    Attributes:
        exchange: the exchange.
        output: what gets the result.
        target: what the exchange writes the result to; it may be the output.
        unnamed: the name that it uses, if it was given none.
    """

    exchange: TensorExchange
    output: Tensor
    target: Tensor
    unnamed: str

    def wait(self) -> None:
        """Wait for the result."""
        exchange = self.exchange
        try:
            if exchange.left or exchange.error is not None:
                session().wait(exchange)
        finally:
            if self.unnamed:
                _unnamed.discard(self.unnamed)

    def write(self) -> None:
        """Write the result to the output, as far as the exchange has not done so."""
        self.exchange.write()
        if self.target is not self.output:
            with torch.no_grad():
                self.output.copy_(self.target)
        elif self.exchange.tensor.divided:  # torch has not seen that its bytes were written
            torch.autograd.graph.increment_version(self.output)

    def finish(self) -> Tensor:
        """Wait for the result, and return it."""
        self.wait()
        self.write()
        return self.output


def reduction_of(
    average: bool,
    rule: object,
    attack: object = None,
    seed: int = 0,
    compression: Compressing = Compression.none,
) -> Reduction:
    """Return how tensors are combined: by a rule if there is one, else by their mean or sum.

    Raises:
        SpecError: the arguments contradict each other.
    """
    if isinstance(average, str):
        raise SpecError(f"average is {average!r}: give the name of a tensor as name={average!r}")
    if rule is not None and not average:
        raise SpecError("a rule is in place of the mean or the sum: leave out average=False and op=Sum, or rule=")
    if rule is attack is None and compression is Compression.none:
        return "mean" if average else "sum"
    conversion(compression)  # checks a class
    encodes = compression is not None and not isinstance(compression, type)
    if attack is not None and not encodes and compression not in (None, Compression.none):
        raise SpecError(
            "attacks are not simulated on gradients that a class of Compression converts: give a compressor of hpcps, "
            'such as compression="fp16", or leave out attack='
        )
    if (encodes or attack is not None) and not average:
        raise SpecError(
            f"{'a compressor' if attack is None else 'attack='} is for the mean or a rule: use average=True"
        )
    if encodes or attack is not None:
        return {
            **table_of(rule or "mean"),
            **({} if attack is None else {"attack": table_of(attack, "attack"), "seed": seed}),
            **({"compression": table_of(compression, "compression")} if encodes else {}),
        }
    return table_of(rule) if rule is not None else "mean" if average else "sum"


def declare(name: str, tensor: Tensor, *, average: bool = True, rule: object = None) -> None:
    """Declare a tensor before its first exchange. All processes declare the same tensors in the same order.

    An exchange declares a tensor that is not declared. Declaring is for scripts whose first exchanges may be in another
    order in each process.

    Args:
        name: its name.
        tensor: a tensor of the same type and shape.
        average: whether the mean is exchanged, else the sum.
        rule: the rule that combines the tensors instead, see `push_pull`.

    Raises:
        SpecError: it was declared in another way, or cannot be combined in this way.
    """
    declared(name, tensor, reduction_of(average, rule))


def declared(
    name: str,
    tensor: Tensor,
    reduction: Reduction,
    shapes: Sequence[Sequence[int]] | None = None,
    whole: bool = False,
) -> tensors.Tensor:
    """Return the declared tensor of a session for one of torch; see `Participant.declare`."""
    current, given = session(), (tensor.dtype, tensor.layout, tensor.shape, reduction, shapes, whole)
    known = current.declared.get(name)
    if known is not None and known[0] == given:
        return known[1]
    check_whole(name, tensor)
    check_world()
    dtype = NAMES.get(tensor.dtype)
    if dtype is None:
        raise SpecError(f"tensor '{name}' is {tensor.dtype}, which cannot be exchanged: use one of {', '.join(TYPES)}")
    if tensor.layout is not torch.strided:
        raise sparse(name)
    each = tuple(map(tuple, (tensor.shape,) if shapes is None else shapes))
    found = current.declare(Declaration(name, dtype, each, reduction, whole))
    current.declared[name] = given, found
    return found


def check_whole(name: str, tensor: Tensor) -> None:
    """Check that this process has all of a tensor.

    Raises:
        SpecError: it is a DTensor, of which each process has a part.
    """
    if hasattr(tensor, "placements"):
        raise SpecError(
            f"tensor '{name}' is a DTensor, as fully_shard and tensor parallelism make them: processes exchange whole "
            "tensors: leave out fully_shard, or give tensor.full_tensor()"
        )


def sparse(name: str) -> SpecError:
    """Return the error of a tensor that is sparse."""
    return SpecError(f"tensor '{name}' is sparse: use sparse=False, or to_dense()")


def begin(
    tensor: Tensor,
    output: Tensor,
    name: str | None,
    reduction: Reduction,
    *,
    given: bool = True,
    shapes: Sequence[Sequence[int]] | None = None,
    compression: type[NoneCompressor] = Compression.none,
    absent: Sequence[int] = (),
    deferred: bool = False,
) -> PendingTensor:
    """Begin an exchange.

    Args:
        tensor: the tensor.
        output: what gets the result: a tensor of the same shape, type and device; it may be the same.
        name: its name; None for a name from its type and shape.
        reduction: how tensors are combined.
        given: whether this process gives its tensor.
        shapes: the shapes of its blocks, for rules that see blocks; by default it is one block.
        compression: see `Compression`.
        absent: see `TensorExchange`.
        deferred: whether only `PendingTensor.write` writes to the output.
    """
    if compression is not Compression.none:
        compressed, _ = compression.compress(tensor)
        if compressed is not tensor:
            pending = begin(compressed, compressed, name, reduction, given=given, shapes=shapes, absent=absent)
            return PendingTensor(pending.exchange, output, pending.target, pending.unnamed)
    form = "" if name else f"unnamed {tensor.dtype} {list(tensor.shape)} {reduction}"
    unnamed = _free_name(form) if form else ""
    found, target = declared(name or unnamed, tensor, reduction, shapes), output
    if not output.is_contiguous() and any(s == 0 and n > 1 for s, n in zip(output.stride(), output.shape, strict=True)):
        raise SpecError(
            f"tensor '{name or unnamed}' has elements that share memory, as after expand(): use a contiguous copy"
        )
    if form:
        _calls[form] += 1
    call = _calls[form] if form else 0
    if not found.divided:
        exchange = session().start(found, [tensor] if given else None, [output], call, absent, deferred)
    else:
        if not output.is_contiguous() or output.device.type != "cpu":
            target = torch.empty(output.shape, dtype=output.dtype)
        source = [bytes_of(tensor.detach().contiguous().cpu())] if given else None
        exchange = session().start(found, source, [bytes_of(target)], call, absent, deferred)
    if unnamed:
        _unnamed.add(unnamed)
    return PendingTensor(exchange, output, target, unnamed)


def named(call: str, given: Iterable[Any]) -> list[tuple[str, Any]]:
    """Return pairs of names and tensors.

    Raises:
        SpecError: they are none.
    """
    pairs = list(given)
    if all(isinstance(each, tuple | list) and len(each) == 2 and isinstance(each[0], str) for each in pairs):
        return pairs
    raise SpecError(f"{call} needs the names of tensors: use model.named_parameters() in place of parameters()")


def push_pull_async(tensor: Tensor, average: bool = True, name: str | None = None, *, rule: object = None) -> int:
    """Begin to combine a tensor with those of the other processes; return a handle for `synchronize` and `poll`.

    See `push_pull`. The tensor may be changed as soon as this returns.
    """
    copy = _copy(_checked(tensor))
    return _kept(begin(copy, copy, name, reduction_of(average, rule)))


def push_pull_async_inplace(
    tensor: Tensor, average: bool = True, name: str | None = None, *, rule: object = None
) -> int:
    """Begin to combine a tensor in place; return a handle. The tensor must not be used until `synchronize` returns."""
    return _kept(begin(_checked(tensor), tensor, name, reduction_of(average, rule)))


def push_pull(
    tensor: Tensor,
    average: bool = True,
    name: str | None = None,
    *,
    compression: Compressing = Compression.none,
    rule: object = None,
) -> Tensor:
    """Return the mean or sum of the tensors that all processes give under the same name, or what a rule makes of them.

    Args:
        tensor: a dense tensor of any device; of the same type and shape in all processes. The mean is differentiable,
            and so is the sum: the gradient is exchanged in the same way.
        average: whether to return the mean, else the sum; the mean is for floats.
        name: the name of the tensor in all processes; None: a name from its type and shape. Without names, all
            processes must begin and synchronize exchanges of one type and shape in the same order.
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
    if _checked(tensor).requires_grad and torch.is_grad_enabled() and rule is None:
        result: Tensor = _PushPull.apply(tensor, average, name, compression)  # type: ignore[no-untyped-call]
        return result
    copy = _copy(tensor)
    reduction = reduction_of(average, rule, compression=compression)
    return begin(copy, copy, name, reduction, compression=conversion(compression)).finish()


def poll(handle: int) -> bool:
    """Return whether an exchange is done, so that `synchronize` does not wait."""
    return session().done(_pending(handle).exchange)


def synchronize(handle: int) -> Tensor:
    """Wait for the result of an exchange, and return it."""
    pending = _handles.pop(handle, None) or _pending(handle)
    return pending.finish()


class _PushPull(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, average: bool, name: str | None, compression: Compressing) -> Tensor:
        ctx.average, ctx.name, ctx.compression = average, name, compression
        return push_pull(tensor.detach(), average, name, compression=compression)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        name = ctx.name and f"{ctx.name}.gradient"
        return push_pull(gradient, ctx.average, name, compression=ctx.compression), None, None, None


def _checked(tensor: Tensor) -> Tensor:
    if isinstance(tensor, Tensor):
        if tensor.is_meta:
            raise SpecError("push_pull and allreduce expect a tensor with values, and one on the meta device has none")
        return tensor
    raise SpecError(f"push_pull and allreduce expect a tensor, not {tensor!r:.50}: use torch.as_tensor()")


def _copy(tensor: Tensor) -> Tensor:
    """Return a copy that any thread may write to: not even in inference mode is it a tensor of that mode."""
    with torch.inference_mode(False):
        return tensor.detach().clone()


def _kept(pending: PendingTensor) -> int:
    handle = next(_numbers)
    _handles[handle] = pending
    return handle


def _pending(handle: int) -> PendingTensor:
    if handle not in _handles:
        raise RunError(f"handle {handle} is unknown, or synchronized already")
    return _handles[handle]


def _free_name(form: str) -> str:
    """Return the first name for a tensor of a form that no exchange under way has.

    A script that does the same in all processes gets the same names in all of them. Where it does not, the aggregator
    finds that the numbers of the calls differ.
    """
    names = (f"{form} {number}" for number in count())
    return next(name for name in names if name not in _unnamed)
