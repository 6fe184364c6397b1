"""Exchanges several tensors as one: the gradients of a step, for rules that see all of them, or small ones."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce

import torch
from torch import Tensor

from hpcps.session.tensors import Reduction, TensorExchange
from hpcps.torch.compression import Compression, NoneCompressor
from hpcps.torch.exchange import PendingTensor, begin, check_dense, declared


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
        blocks: Sequence[int] | None = None,
    ) -> None:
        """Declare the tensor.

        Args:
            like: tensors of the same shapes.
            name: its name.
            reduction: how it is combined.
            compression: see `Compression`.
            blocks: the sizes of its blocks; by default each tensor is one.
        """
        sizes = [each.numel() for each in like]
        flat, self._name, self._parts = like[0].detach(), name, list[Tensor]()
        if len(like) > 1:  # a single tensor is exchanged where it is
            dtype = reduce(torch.promote_types, (each.dtype for each in like))
            self._flat = flat = torch.empty(sum(sizes), dtype=dtype, device=flat.device)
            self._parts = [part.view(each.shape) for part, each in zip(torch.split(flat, sizes), like, strict=True)]
        blocks = sizes if blocks is None else blocks
        declared(name, compression.compress(flat)[0], reduction, blocks)
        self._begin = partial(begin, name=name, reduction=reduction, blocks=blocks, compression=compression)

    @torch.no_grad()
    def begin(self, tensors: Sequence[Tensor]) -> TensorExchange:
        """Begin an exchange of tensors, which get the results.

        Raises:
            SpecError: one of them is sparse.
        """
        if self._parts:
            self._tensors = tensors
            for each in tensors:
                check_dense(self._name, each)
            torch._foreach_copy_(self._parts, tensors)  # type: ignore[arg-type]  # it takes sequences
            self.pending = self._begin(self._flat, self._flat)
        else:
            self.pending = self._begin(tensors[0], tensors[0])
        return self.pending.exchange

    @torch.no_grad()
    def finish(self) -> None:
        """Wait for the results, and copy them into the tensors."""
        self.pending.finish()
        if self._parts:
            torch._foreach_copy_(self._tensors, self._parts)  # type: ignore[arg-type]  # it takes sequences
            self._tensors = ()
