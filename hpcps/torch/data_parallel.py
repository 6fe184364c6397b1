"""DistributedDataParallel, as BytePS has it: combines the gradients of a model while its backward pass goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from traceback import walk_stack
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointFunction

from hpcps.errors import SpecError
from hpcps.session.reduction import Reduction
from hpcps.torch.collectives import broadcast_parameters
from hpcps.torch.compression import Compressing, Compression, NoneCompressor, conversion
from hpcps.torch.exchange import reduction_of
from hpcps.torch.gradients import Gradients
from hpcps.torch.updates import UpdateCounter

_models = count()
_REENTRANT = CheckpointFunction.backward.__code__


class _Backward(Gradients):
    """Combines the gradients at the end of each backward pass."""

    _begun = False

    def __init__(self, names: dict[Tensor, str], reduction: Reduction, compression: type[NoneCompressor]) -> None:
        """Exchange the gradients of parameters from now on; see `Gradients`."""
        super().__init__(names, reduction, 1, compression)
        self._updates = UpdateCounter()

    def count(self, parameter: Tensor) -> None:
        if self.synchronizes:
            if not self._begun:
                self._begun = True
                if any(frame.f_code is _REENTRANT for frame, _ in walk_stack(None)):
                    raise self.failed(
                        "hpcps.torch.DistributedDataParallel combines gradients at the end of a backward pass, and a "
                        "reentrant checkpoint has a backward pass of its own: give checkpoint() use_reentrant=False"
                    )
                # The engine calls it at the end of this backward pass.
                torch.autograd.Variable._execution_engine.queue_callback(self._end)
            super().count(parameter)

    def check_ended(self) -> None:
        """Check that the last backward pass has ended.

        Raises:
            RunError: an exception has ended it.
        """
        if self._begun and torch._C._current_graph_task_id() == -1:
            raise self.failed(
                "an exception has ended the last backward pass before all gradients were combined, so this process has "
                "not done what the others did: end the script, and restart all processes"
            )

    def _end(self) -> None:
        self._begun = False
        self.synchronize()
        self._updates.count(self.names)


class DistributedDataParallel(torch.nn.Module):
    """A model whose gradients are combined with those of the other processes; plain optimizers train it.

    All processes begin with the parameters of process 0.

    Attributes:
        module: the model.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        broadcast_buffers: bool = True,
        compression: Compressing = Compression.none,
        *,
        rule: object = None,
    ) -> None:
        """Wrap a model, on the device on which it is.

        Args:
            module: the model.
            device_ids: at most one device, for scripts that give it: that of the model.
            broadcast_buffers: whether the model and each forward pass in training begin with the buffers of process 0,
                such as the statistics of BatchNorm.
            compression: see `Compressing`.
            rule: the rule that combines the gradients in place of the mean, see `push_pull`.

        Raises:
            SpecError: there are several devices, or the rule cannot be used.
        """
        super().__init__()
        if device_ids is not None and len(device_ids) > 1:
            raise SpecError(f"device_ids has {len(device_ids)} devices: a process uses one, that of its model")
        self.module = module
        self._prefix, self._broadcasts = f"model {next(_models)}/", broadcast_buffers
        names: dict[Tensor, str] = {
            parameter: f"{self._prefix}{name}"
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        self._gradients = _Backward(names, reduction_of("mean", rule, compression=compression), conversion(compression))
        self._broadcast((module.state_dict() if broadcast_buffers else dict(module.named_parameters())).items())

    def forward(self, *inputs: Any, **keywords: Any) -> Any:
        """Call the model.

        Raises:
            RunError: an exception has ended the last backward pass.
        """
        self._gradients.check_ended()
        if self._broadcasts and self.training and self._gradients.synchronizes:
            self._broadcast(self.module.named_buffers())
        return self.module(*inputs, **keywords)

    def synchronize(self) -> None:
        """Do nothing: the gradients are combined when `backward()` returns. Scripts of BytePS may call it."""

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backward passes add gradients without combining them; the first one after it combines the sums."""
        before, self._gradients.synchronizes = self._gradients.synchronizes, False
        try:
            yield
        finally:
            self._gradients.synchronizes = before

    def _broadcast(self, named: Any) -> None:
        broadcast_parameters([(f"{self._prefix}{name}", value) for name, value in named])
