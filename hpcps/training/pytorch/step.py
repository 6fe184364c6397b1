"""One pass of a network over a batch; a GPU replays a recorded pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hpcps.training.pytorch.device import Recorder
from hpcps.training.pytorch.flat import TorchFlatModel

WARM_UP = 3
"""Number of passes before the recorded one: in these, libraries choose algorithms and allocate memory."""

Pass = Callable[[Tensor, Tensor], Tensor]


class Step:
    """Runs a network over batches, forward and optionally backward.

    If the device can record (`compute_device.recorder`), it replays all passes after the first few: one launch
    instead of some hundred; but not those of batches of unusual size. The optimizer is not part of the recording,
    because it takes only a few launches on flat vectors, and because its learning rate and its momentum change, which
    would make the recording invalid.
    """

    def __init__(self, model: TorchFlatModel, batch_size: int, *, backward: bool) -> None:
        """Record nothing yet.

        Args:
            model: the network; the tensors of its parameters, gradient and statistics must not be replaced.
            batch_size: the usual number of samples in a batch.
            backward: whether to compute the gradient of the mean loss, into `model.gradient`.
        """
        self._model = model
        self._batch_size = batch_size
        self._backward = backward
        self._passes = 0
        self._replay: Pass | None = None

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Run a batch; return the logits `[b, classes]`, which the caller may keep.

        Args:
            images: the samples `[b, *shape]`, on the device of the network.
            labels: `[b]`, on the same device.
        """
        if len(images) != self._batch_size:
            return self._compute(images, labels)
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
        """Return a function that replays a pass, or None if recording fails."""
        # A recording contains addresses, so every batch is copied to the address of the first one.
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
            # The next pass overwrites the logits.
            return replay().clone()

        return run
