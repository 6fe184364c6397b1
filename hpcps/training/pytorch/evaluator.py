"""Evaluates networks on the test set, between training steps or in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hpcps.data.batches import Batch
from hpcps.data.samples import Labels
from hpcps.numerics.layout import Vector
from hpcps.training.evaluation import Counts, Evaluation, Evaluator, TestSet
from hpcps.training.pytorch.flat import TorchFlatModel, readable


def count(counts: Counts, outputs: Tensor, labels: Tensor, summed_loss: Tensor) -> None:
    """Compare `outputs` `[b, classes]` with `labels` `[b]`, and add the sum of their losses."""
    good = outputs.isfinite().all(1)
    correct = int(((outputs.argmax(1) == labels) & good).sum())
    counts.add(len(labels), correct, bool(good.all()), float(summed_loss))


class TorchNetwork(Evaluator):
    """A network in PyTorch that evaluates models: that of a trainer, or that of its background evaluator."""

    _model: TorchFlatModel
    _sweep: Callable[[], Iterable[Batch]]
    """Yields the batches of one pass over the trainer's shard."""

    def copy_from(self, values: Vector) -> None:
        with self._model.compute_device.in_order():
            self._model.from_host(values, self._model.parameters)

    def load_statistics(self, values: Vector) -> None:
        with self._model.compute_device.in_order():
            self._model.load_statistics(readable(values))

    def reestimate_statistics(self) -> None:
        norms, network = self._model.norms, self._model.network
        if not norms:
            return
        usual = [norm.momentum for norm in norms]
        with self._model.compute_device.in_order(), torch.no_grad():
            for norm in norms:
                norm.reset_running_stats()
                norm.momentum = None  # None makes torch compute a cumulative average
            # Dropout is off, as in the test. Its masks would also depend on what other threads draw from torch's
            # generator.
            network.eval()
            for norm in norms:
                norm.train()
            for images, labels in self._sweep():
                self._go_on()
                network(self._model.batch(images, labels)[0])
        for norm, momentum in zip(norms, usual, strict=True):
            norm.momentum = momentum

    def evaluate(self) -> Evaluation:
        with self._model.compute_device.in_order(), torch.inference_mode():
            self._model.network.eval()
            return super().evaluate()

    def _classify(self, images: Vector, labels: Labels, counts: Counts) -> NDArray[np.float32]:
        inputs, targets = self._model.batch(images, labels)
        outputs = self._model.network(inputs)
        count(counts, outputs, targets, self._model.summed_loss(outputs, targets))
        ours: NDArray[np.float32] = outputs.cpu().numpy()
        return ours


class TorchEvaluator(TorchNetwork):
    """Evaluates models in another thread than that of the trainer."""

    def __init__(self, model: TorchFlatModel, test_set: TestSet, sweep: Callable[[], Iterable[Batch]]) -> None:
        """Take a network for evaluation only, which no other object uses."""
        super().__init__(test_set)
        self._model = model
        self._sweep = sweep
