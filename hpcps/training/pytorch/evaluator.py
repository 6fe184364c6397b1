"""Evaluates networks on the test set, between training steps or in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from hpcps.data.batches import Batch, Normaliser, evaluation_slices
from hpcps.data.samples import Samples
from hpcps.numerics.layout import Vector
from hpcps.training.counts import Counts
from hpcps.training.pytorch.flat import TorchFlatModel, readable
from hpcps.training.trainer import CancelledError, Evaluation


def count(counts: Counts, outputs: Tensor, labels: Tensor, summed_loss: Tensor) -> None:
    """Compare `outputs` `[b, classes]` with `labels` `[b]`, and add the sum of their losses."""
    good = outputs.isfinite().all(1)
    correct = int(((outputs.argmax(1) == labels) & good).sum())
    counts.add(len(labels), correct, bool(good.all()), float(summed_loss))


class TestSet:
    """The test set, and the evaluation of networks on it."""

    def __init__(self, read: Callable[[], Samples], normalise: Normaliser) -> None:
        """Read nothing yet.

        Args:
            read: reads the test set; called at the first evaluation.
            normalise: normalises the test images.
        """
        self._read = read
        self._normalise = normalise
        self._test: Samples | None = None

    def evaluate(self, model: TorchFlatModel, go_on: Callable[[], None] = lambda: None) -> Evaluation:
        """Evaluate a model with its running statistics; `go_on` is called before each batch, and may raise an error."""
        if self._test is None:
            self._test = self._read()
        model.network.eval()
        counts = Counts()
        with torch.inference_mode():
            for here in evaluation_slices(len(self._test), self._normalise.shape):
                go_on()
                images, labels = model.batch(self._normalise(self._test.images[here]), self._test.labels[here])
                outputs = model.network(images)
                count(counts, outputs, labels, model.summed_loss(outputs, labels))
                counts.rank(outputs.cpu().numpy(), self._test.labels[here])
        return counts.evaluation


def reestimate_statistics(
    model: TorchFlatModel, batches: Iterable[Batch], go_on: Callable[[], None] = lambda: None
) -> None:
    """Replace a model's running statistics by their averages over some batches; `go_on` as in `TestSet.evaluate`."""
    if not model.norms:
        return
    usual = [norm.momentum for norm in model.norms]
    for norm in model.norms:
        norm.reset_running_stats()
        norm.momentum = None  # None makes torch compute a cumulative average
    # Dropout is off, as in the test. Its masks would also depend on what other threads draw from torch's generator.
    model.network.eval()
    for norm in model.norms:
        norm.train()
    with torch.no_grad():
        for images, labels in batches:
            go_on()
            model.network(model.batch(images, labels)[0])
    for norm, momentum in zip(model.norms, usual, strict=True):
        norm.momentum = momentum


class TorchEvaluator:
    """Evaluates models in another thread than that of the trainer; see `hpcps.training.trainer.Evaluator`."""

    def __init__(self, model: TorchFlatModel, test_set: TestSet, sweep: Callable[[], Iterable[Batch]]) -> None:
        """Take a network for evaluation only.

        Args:
            model: the network; no other object uses it.
            test_set: the test set of the trainer.
            sweep: yields the batches of one pass over the trainer's shard.
        """
        self._model = model
        self._test_set = test_set
        self._sweep = sweep
        self._cancelled = threading.Event()

    def copy_from(self, values: Vector) -> None:
        """Overwrite the parameters with `values`, `[d]`."""
        with self._model.compute_device.in_order():
            self._model.from_host(values, self._model.parameters)

    def load_statistics(self, values: Vector) -> None:
        """Overwrite the running statistics with `values`, `[k]`."""
        with self._model.compute_device.in_order():
            self._model.load_statistics(readable(values))

    def reestimate_statistics(self) -> None:
        """Replace the running statistics by their averages over one pass of the shard."""
        with self._model.compute_device.in_order():
            reestimate_statistics(self._model, self._sweep(), self._go_on)

    def evaluate(self) -> Evaluation:
        """Evaluate on the test set.

        Raises:
            CancelledError: `cancel` was called.
        """
        with self._model.compute_device.in_order():
            return self._test_set.evaluate(self._model, self._go_on)

    def cancel(self) -> None:
        """Make the current evaluation raise `CancelledError` before its next batch."""
        self._cancelled.set()

    def _go_on(self) -> None:
        if self._cancelled.is_set():
            raise CancelledError
