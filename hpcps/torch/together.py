"""Exchanges several tensors as one: all gradients of a step, for rules that see them, or those of some layers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

import torch
from torch import Tensor

from hpcps.session.current import session
from hpcps.session.reduction import Reduction
from hpcps.session.tensors import TensorExchange
from hpcps.torch.compression import Compression, NoneCompressor
from hpcps.torch.exchange import PendingTensor, begin, declared


class Together:
    """Tensors on one device that are exchanged as one tensor.

    Attributes:
        pending: the last exchange.
    """

    pending: PendingTensor

    def __init__(
        self,
        like: Sequence[Tensor],
        name: str,
        reduction: Reduction,
        compression: type[NoneCompressor] = Compression.none,
        shapes: Sequence[Sequence[int]] | None = None,
    ) -> None:
        """Declare the tensor.

        Args:
            like: tensors of the same shapes.
            name: its name.
            reduction: how it is combined.
            compression: see `Compression`.
            shapes: the shapes of its blocks; by default each tensor is one.
        """
        sizes, first = [each.numel() for each in like], like[0].detach()
        shapes = [each.shape for each in like] if shapes is None else shapes
        self._staged = list[Tensor]()
        if len(like) == 1:
            declared(name, compression.compress(first)[0], reduction, shapes=shapes)
            self._begin = partial(begin, name=name, reduction=reduction, shapes=shapes, compression=compression)
            return
        staged = first.device.type != "cpu"  # all pass from and to a device in one copy
        dtype = reduce(torch.promote_types, (each.dtype for each in like))
        self._flat = torch.empty(sum(sizes), dtype=dtype, device=first.device if staged else "meta")
        if staged:
            self._staged = [
                part.view(each.shape) for part, each in zip(torch.split(self._flat, sizes), like, strict=True)
            ]
        self._tensor = declared(name, compression.compress(self._flat)[0], reduction, shapes=shapes, whole=True)

    @torch.no_grad()
    def begin(
        self, tensors: Sequence[Tensor], absent: Sequence[int] = (), deferred: bool = False, priority: int = 0
    ) -> TensorExchange:
        """Begin an exchange of tensors, which get the results.

        Args:
            tensors: the tensors.
            absent: the numbers of those that this process does not have, which are zero.
            deferred: whether only `write` writes to the tensors.
            priority: how urgent it is; larger numbers are sent first.
        """
        if len(tensors) == 1:
            self.pending = self._begin(tensors[0], tensors[0], absent=absent, deferred=deferred, priority=priority)
            return self.pending.exchange
        if self._staged:
            torch._foreach_copy_(self._staged, tensors)  # type: ignore[arg-type]  # it takes sequences
        self._tensors, given = tensors, [self._flat] if self._staged else tensors
        deferred = deferred and not self._staged
        exchange = session().start(self._tensor, given, given, 0, absent, deferred, priority)
        self.pending = PendingTensor(exchange, "", tensors[0], tensors[0])
        return exchange

    @torch.no_grad()
    def write(self) -> None:
        """Write the results to the tensors, as far as the exchange has not done so."""
        self.pending.write()
        if self._staged:
            torch._foreach_copy_(self._tensors, self._staged)  # type: ignore[arg-type]  # it takes sequences
        self._tensors = ()

    def finish(self) -> None:
        """Wait for the results, and write them to the tensors."""
        self.pending.wait()
        self.write()
