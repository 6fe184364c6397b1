"""The trainer in MXNet, with Gluon and GluonCV."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mxnet import autograd, nd, random
from numpy.typing import NDArray

from hpcps.data.base import Facts
from hpcps.data.samples import Labels
from hpcps.models import Model
from hpcps.numerics.layout import Layout, Vector
from hpcps.numerics.state import State
from hpcps.training.evaluation import Counts, Evaluation, Progress
from hpcps.training.mxnet.flat import MxnetFlatModel
from hpcps.training.mxnet.framework import prepare_device
from hpcps.training.mxnet.optimizers import build_optimizer
from hpcps.training.trainer import Relabel, Trainer

KEPT = 0.9
"""Factor of the old running statistics in Gluon's BatchNorm at each batch."""


def count(counts: Counts, outputs: NDArray[np.float32], labels: NDArray[Any]) -> None:
    """Compare `outputs` `[b, classes]` with `labels` `[b]`, and add the sum of their cross entropies."""
    good = np.isfinite(outputs).all(1)
    correct = int(((outputs.argmax(1) == labels) & good).sum())
    with np.errstate(invalid="ignore", over="ignore"):
        shifted = outputs.astype(np.float64) - outputs.max(1, keepdims=True)
        loss = float(np.sum(np.log(np.exp(shifted).sum(1)) - shifted[np.arange(len(labels)), labels]))
    counts.add(len(labels), correct, bool(good.all()), loss)


class MxnetTrainer(Trainer):
    """Trains one Gluon network on one shard."""

    def _build(self, model: Model, facts: Facts, weights: np.random.Generator) -> None:
        self._device = prepare_device(self._train)
        self._model = MxnetFlatModel(model, facts, self._device)
        self._model.draw_weights(weights)
        self._optimizer = build_optimizer(self._train.optimizer)

    @property
    def layout(self) -> Layout:
        return self._model.layout

    @property
    def device(self) -> str:
        return "cpu" if self._device.device_type == "cpu" else f"cuda:{self._device.device_id}"

    def _optimizer_state(self) -> State:
        return self._optimizer.state()

    def _restore_optimizer(self, state: State) -> None:
        self._optimizer.restore(state, self._device)

    def copy_to(self, out: Vector) -> None:
        self._model.parameters.read(out)

    def copy_from(self, values: Vector) -> None:
        self._model.parameters.write(values)

    def _on_device(self, values: Any) -> Any:
        return nd.array(values, ctx=self._device)

    def _step(self, rate: float, centre: Any, pull: float) -> None:
        parameters = self._model.parameters.array
        self._optimizer.step(parameters, self._model.gradient.array, rate)
        if centre is not None:
            parameters += pull * (centre - parameters)

    def _run(self, steps: int, act: Callable[[], None] | None, relabel: Relabel | None = None) -> Progress:
        outputs: list[Any] = []
        labels: list[Any] = []
        for _ in range(steps):
            images, targets = self._next_batch(relabel)
            if self._model.drops:  # this takes a millisecond
                random.seed(self._step_seed(self._steps_done) % 2**31, self._device)
            outputs.append(self._forward_and_backward(images, targets))
            labels.append(targets)
            if act is not None:
                act()
            self._steps_done += 1
        counts = Counts()
        for logits, targets in zip(outputs, labels, strict=True):
            count(counts, logits.asnumpy(), targets)
        return counts.progress(steps)

    def _forward_and_backward(self, images: Any, labels: Any) -> Any:
        """Return the logits; compute the gradient and update the statistics, which MXNet does in the backward pass."""
        with autograd.record():
            logits = self._model.network(self._on_device(images))
            loss = -nd.pick(nd.log_softmax(logits), self._on_device(labels)).mean()
        loss.backward()
        return logits

    def loss_on(self, number: int) -> Callable[[Vector], float]:
        images, labels = self._stream.draw(number)

        def loss(values: Vector) -> float:
            live, counts = self._model.parameters.copy(), Counts()
            self._model.parameters.write(values)
            self._model.update_twin()
            self._model.parameters.write(live)
            self._classify(images, labels, counts)
            return counts.mean_loss

        return loss

    @property
    def evaluator(self) -> None:
        """None: MXNet's engine does not support calls from two threads, so no evaluation runs in the background."""
        return None

    def evaluate(self) -> Evaluation:
        self._model.update_twin()
        return super().evaluate()

    def _classify(self, images: Vector, labels: Labels, counts: Counts) -> NDArray[np.float32]:
        outputs: NDArray[np.float32] = self._model.twin(self._on_device(images)).asnumpy()
        count(counts, outputs, labels)
        return outputs

    @property
    def statistics(self) -> Vector:
        return self._model.statistics.copy()

    def load_statistics(self, values: Vector) -> None:
        self._model.statistics.write(values)

    def reestimate_statistics(self) -> None:
        empty = np.zeros_like(self.statistics)
        if not empty.size:
            return
        total, batches = empty.astype(np.float64), 0
        for images, labels in self._stream.sweep():
            # Starting from 0, the result is the statistics of the batch times (1 - KEPT).
            self.load_statistics(empty)
            self._forward_and_backward(images, labels)
            total += self.statistics
            batches += 1
        self.load_statistics((total / (batches * (1 - KEPT))).astype(np.float32))
