"""An exchange that a script has begun: how its tensor is declared, its name, and its handle."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hpcps.errors import SpecError
from hpcps.session import reduction as reductions
from hpcps.session import tensors
from hpcps.session.current import check_front_end, session
from hpcps.session.elements import TYPES
from hpcps.session.pending import PendingExchange, free_name, number_of_call, take_name
from hpcps.session.reduction import Reduction
from hpcps.session.tensors import Declaration
from hpcps.torch.compression import Compressing, Compression, NoneCompressor, conversion
from hpcps.torch.copies import NAMES, bytes_of, on_host
from hpcps.torch.state import FRONT_END, check_world


@dataclass(slots=True)
class PendingTensor(PendingExchange):
    """An exchange of a tensor of torch.

    Attributes:
        output: what gets the result.
        target: what the exchange writes the result to; it may be the output.
        factor: what the result is multiplied by.
    """

    output: Tensor
    target: Tensor
    factor: float = 1.0

    def write(self) -> None:
        """Write the result to the output, as far as the exchange has not done so."""
        self.exchange.write()
        if self.target is not self.output:
            with torch.no_grad():
                self.output.copy_(self.target)
        elif self.exchange.tensor.divided:  # torch has not seen that its bytes were written
            torch.autograd.graph.increment_version(self.output)
        if self.factor != 1.0:
            with torch.no_grad():
                self.output.mul_(self.factor)

    def finish(self) -> Tensor:
        """Wait for the result, and return it."""
        self.wait()
        self.write()
        return self.output


def reduction_of(
    operation: str,
    rule: object,
    attack: object = None,
    seed: int = 0,
    compression: Compressing = Compression.none,
) -> Reduction:
    """Return how tensors are combined; see `session.reduction.reduction_of`.

    Raises:
        SpecError: the arguments contradict each other.
    """
    if rule is attack is None and compression is Compression.none:
        return operation
    conversion(compression)  # checks a class
    encodes = compression is not None and not isinstance(compression, type)
    if attack is not None and not encodes and compression not in (None, Compression.none):
        raise SpecError(
            "attacks are not simulated on gradients that a class of Compression converts: give a compressor of hpcps, "
            'such as compression="fp16", or leave out attack='
        )
    return reductions.reduction_of(operation, rule, attack, seed, compression if encodes else None)


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
    check_front_end(FRONT_END)
    check_world()
    if tensor.layout is not torch.strided:
        raise sparse_error(name)
    dtype = NAMES.get(tensor.dtype)
    if dtype is None:
        raise type_error(name, tensor.dtype)
    each = tuple(map(tuple, (tensor.shape,) if shapes is None else shapes))
    found = current.declare(Declaration(name, dtype, each, reduction, whole))
    current.declared[name] = given, found
    return found


def called(name: str | None) -> str:
    """Return what messages call a tensor."""
    return f"tensor '{name}'" if name else "a tensor without a name"


def check_whole(name: str | None, tensor: Tensor) -> None:
    """Check that this process has all of a tensor.

    Raises:
        SpecError: it is a DTensor, of which each process has a part.
    """
    if hasattr(tensor, "placements"):
        raise SpecError(
            f"{called(name)} is a DTensor, as fully_shard and tensor parallelism make them: processes exchange whole "
            "tensors: leave out fully_shard, or give tensor.full_tensor()"
        )


def type_error(name: str | None, dtype: torch.dtype) -> SpecError:
    """Return the error of a tensor of a type that cannot be exchanged."""
    return SpecError(f"{called(name)} is {dtype}, which cannot be exchanged: use one of {', '.join(TYPES)}")


def sparse_error(name: str | None) -> SpecError:
    """Return the error of a tensor that is sparse."""
    return SpecError(f"{called(name)} is sparse: use sparse=False, or to_dense()")


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
    source: str = "",
    priority: int = 0,
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
        source: what its name says of the process that gives it, if only one does.
        priority: how urgent it is; larger numbers are sent first.
    """
    if compression is not Compression.none:
        compressed, _ = compression.compress(tensor)
        if compressed is not tensor:
            pending = begin(
                compressed, compressed, name, reduction,
                given=given, shapes=shapes, absent=absent, priority=priority,
            )  # fmt: skip
            return PendingTensor(pending.exchange, pending.unnamed, output, pending.target)
    form = "" if name else f"unnamed {tensor.dtype} {list(tensor.shape)} {reduction}{source}"
    unnamed = free_name(form) if form else ""
    name = name and f"{name}{source}"
    found, target = declared(name or unnamed, tensor, reduction, shapes), output
    if not output.is_contiguous() and any(s == 0 and n > 1 for s, n in zip(output.stride(), output.shape, strict=True)):
        raise SpecError(
            f"tensor '{name or unnamed}' has elements that share memory, as after expand(): use a contiguous copy"
        )
    call = number_of_call(form) if form else 0
    if source and (output.is_conj() or output.is_neg()):  # its memory has other values than it
        tensor, target = tensor.resolve_conj().resolve_neg(), torch.empty_like(output)
    if not found.divided:
        exchange = session().start(found, [tensor] if given else None, [target], call, absent, deferred, priority)
    else:
        if not target.is_contiguous() or target.device.type != "cpu":
            target = torch.empty(output.shape, dtype=output.dtype)
        values = [bytes_of(on_host(tensor))] if given else None
        exchange = session().start(found, values, [bytes_of(target)], call, absent, deferred, priority)
    if unnamed:
        take_name(unnamed)
    return PendingTensor(exchange, unnamed, output, target)


def named(call: str, given: Iterable[Any]) -> list[tuple[str, Any]]:
    """Return pairs of names and tensors.

    Raises:
        SpecError: they are none.
    """
    pairs = list(given)
    if all(isinstance(each, tuple | list) and len(each) == 2 and isinstance(each[0], str) for each in pairs):
        return pairs
    raise SpecError(f"{call} needs the names of tensors: use model.named_parameters() in place of parameters()")


def checked(tensor: Tensor) -> Tensor:
    """Return what a script gives as a tensor.

    Raises:
        SpecError: it is none, or has no values.
    """
    if isinstance(tensor, Tensor):
        if tensor.is_meta:
            raise SpecError("exchanges expect a tensor with values, and one on the meta device has none")
        return tensor
    raise SpecError(f"exchanges expect a tensor, not {tensor!r:.50}: use torch.as_tensor()")


def copied(tensor: Tensor) -> Tensor:
    """Return a copy that any thread may write to: not even in inference mode is it a tensor of that mode."""
    with torch.inference_mode(False):
        return tensor.detach().clone()
