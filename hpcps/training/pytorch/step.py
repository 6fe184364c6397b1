"""One pass of a network over a batch, which a GPU replays as it was recorded."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hpcps.training.pytorch.device import Recorder
from hpcps.training.pytorch.flat import TorchFlatModel

WARM_UP = 3
"""Passes before one is recorded: in the first ones libraries choose algorithms and allocate what they keep."""

Pass = Callable[[Tensor, Tensor], Tensor]


class Step:
    """Runs a network over batches of one size, forward and, if it trains, backward.

    Where its device records (`compute_device.recorder`), passes after the first few are replayed: a single launch
    instead of a few hundred. The optimizer is not part of it. On flat vectors it is a few launches; outside, nothing
    that changes from step to step, a learning rate or a restored momentum, is ever part of a recording, which
    therefore stays valid.
    """

    def __init__(self, model: TorchFlatModel, *, backward: bool) -> None:
        """Record nothing yet.

        Args:
            model: the network; parameters, gradient and statistics are to stay where they are.
            backward: whether to leave the gradient of the mean loss in `model.gradient`; else nothing is kept for it.
        """
        self._model = model
        self._backward = backward
        self._passes = 0
        self._replay: Pass | None = None

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Take a batch, and return the logits `[b, classes]`, which are the caller's.

        Args:
            images: the samples `[b, *shape]`, where the network is.
            labels: `[b]`, likewise.
        """
        if self._replay is None and self._passes >= WARM_UP and self._model.compute_device.recorder is not None:
            self._replay = self._record(self._model.compute_device.recorder, images, labels)
        self._passes += 1
        return (self._replay or self._compute)(images, labels)

    def _compute(self, images: Tensor, labels: Tensor) -> Tensor:
        if not self._backward:
            with torch.no_grad():
                return self._run_network(images)
        self._model.gradient.zero_()
        logits = self._run_network(images)
        self._model.mean_loss(logits, labels).backward()  # type: ignore[no-untyped-call]
        return logits.detach()

    def _run_network(self, images: Tensor) -> Tensor:
        logits: Tensor = self._model.network(images)
        return logits

    def _record(self, recorder: Recorder, images: Tensor, labels: Tensor) -> Pass | None:
        """Return what replays a pass, or None if that cannot be had."""
        # A recording knows addresses, not tensors: every batch is copied to where the first one was.
        at_images, at_labels = images.clone(), labels.clone()
        try:
            replay = recorder(lambda: self._compute(at_images, at_labels))
        except RuntimeError as error:
            self._model.compute_device.eager_from_now_on(error)
            return None

        def run(images: Tensor, labels: Tensor) -> Tensor:
            assert images.shape == at_images.shape, "all batches are of one size"
            at_images.copy_(images)
            at_labels.copy_(labels)
            # The next pass writes its logits to where these are.
            return replay().clone()

        return run
