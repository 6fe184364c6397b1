"""The gradients that are exchanged at once: those of some parameters, or the rows of one that is sparse."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from hpcps.session.reduction import Reduction
from hpcps.torch.compression import NoneCompressor
from hpcps.torch.rows import PendingSparse, begin_gradient
from hpcps.torch.samples import State, is_unchanged, state_of
from hpcps.torch.together import Together


class GradientBucket:
    """Gradients that are exchanged together, when the backward pass has computed all of them.

    Attributes:
        parameters: their parameters.
        complete: the gradients that had their last backward pass of the step, as they were then.
        begun: whether they are being exchanged.
        taken: whether the step has been taken that uses them when they have come, see `CrossBarrier`.
        priority: how urgent their exchange is; larger numbers are sent first.
    """

    priority = 0

    def __init__(self, parameters: Sequence[Tensor], together: Together, factor: float) -> None:
        """Begin without gradients.

        Args:
            parameters: the parameters.
            together: exchanges their gradients.
            factor: what gradients are divided by before, and results are multiplied by.
        """
        self.parameters, self._together, self._factor = parameters, together, factor
        self._divided: list[Tensor] = []
        self.complete: dict[Tensor, State] = {}
        self.begun = self.taken = False

    def put(self, parameter: Tensor, gradient: Tensor) -> None:
        """Note a gradient that is complete; begin the exchange if all are."""
        self.complete[parameter] = state_of(gradient)
        if len(self.complete) == len(self.parameters):
            self.begin()

    def begin(self) -> None:
        """Begin the exchange, if it has not begun; the gradient of an unused parameter is zero."""
        if self.begun:
            return
        self.begun = True
        gradients, absent = [], []
        for k, parameter in enumerate(self.parameters):
            if (gradient := parameter.grad) is None:
                absent.append(k)
                gradient = torch.zeros_like(parameter)
                if parameter.requires_grad:  # else the script has frozen it, and no step may change it
                    parameter.grad = gradient
            elif gradient.layout is not torch.strided:  # of a backward pass that was not counted, or of the script
                parameter.grad = gradient = gradient.to_dense()
            gradients.append(gradient)
        if self._factor != 1.0:
            gradients = self._divided = [gradient.detach() / self._factor for gradient in gradients]
        self._together.begin(gradients, absent, deferred=True, priority=self.priority)

    def finish(self) -> list[Tensor]:
        """Wait for the results; return the parameters whose gradients the script has changed.

        A parameter without a gradient in all processes has none afterwards, so that no step changes it, unless its
        result is not zero, as with the residual of a compressor.
        """
        self._together.pending.wait()
        # The script waits here, so nothing changes between the comparison and the results.
        changed = [each for each, state in self.complete.items() if not is_unchanged(each.grad, state)]
        self._together.write()
        for parameter, divided in zip(self.parameters, self._divided, strict=False):
            if parameter.grad is not None:
                with torch.no_grad():
                    torch.mul(divided, self._factor, out=parameter.grad)
        self._divided = []
        for k in self._together.pending.exchange.unused:
            gradient = self.parameters[k].grad
            if gradient is not None and not gradient.any():
                self.parameters[k].grad = None
        self.forget()
        return changed

    def forget(self) -> None:
        """Forget the backward passes of this step."""
        self.complete, self.begun, self.taken = {}, False, False


class SparseGradient:
    """The sparse gradient of a parameter; see `GradientBucket`."""

    priority = 0
    _pending: PendingSparse

    def __init__(
        self,
        parameter: Tensor,
        name: str,
        reduction: Reduction,
        compression: type[NoneCompressor],
        factor: float,
    ) -> None:
        """Begin without a gradient.

        Args:
            parameter: the parameter.
            name: the name of its gradient.
            reduction: how it is combined.
            compression: see `Compression`.
            factor: what the gradient is divided by before, and the result is multiplied by.
        """
        self.parameters, self._parameter = [parameter], parameter
        self._begin = partial(begin_gradient, parameter, name, reduction, compression, factor)
        self.complete: dict[Tensor, State] = {}
        self.begun = self.taken = False

    def put(self, parameter: Tensor, gradient: Tensor) -> None:
        """Note the gradient, which is complete, and begin the exchange."""
        self.complete[parameter] = state_of(gradient)
        self.begin()

    def begin(self) -> None:
        """Begin the exchange, if it has not begun."""
        if not self.begun:
            self.begun = True
            self._pending = self._begin(self.priority)

    def finish(self) -> list[Tensor]:
        """Wait for the result; return the parameter if the script has changed its gradient.

        The gradient is dense afterwards if it was so before, and None if it is None in all processes.
        """
        result, gradient = self._pending.result(), self._parameter.grad
        changed = [each for each, state in self.complete.items() if not is_unchanged(gradient, state)]
        if result is not None and self._parameter.requires_grad:
            dense = gradient is not None and gradient.layout is torch.strided
            self._parameter.grad = result.to_dense() if dense else result
        self.forget()
        return changed

    def forget(self) -> None:
        """Forget the backward passes of this step."""
        self.complete, self.begun, self.taken = {}, False, False
