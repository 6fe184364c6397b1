"""The trainer in MXNet, with Gluon and GluonCV."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mxnet import autograd, nd, random
from numpy.typing import NDArray

from hpcps.data.base import Facts
from hpcps.data.batches import BatchStream, Normaliser, evaluation_slices
from hpcps.data.samples import Samples
from hpcps.models import Model
from hpcps.numerics.layout import Layout, Vector
from hpcps.numerics.state import State
from hpcps.spec.schema import Train
from hpcps.training.counts import Counts
from hpcps.training.mxnet.flat import MxnetFlatModel
from hpcps.training.mxnet.framework import prepare_device
from hpcps.training.mxnet.optimizers import build_optimizer
from hpcps.training.trainer import Evaluation, Progress, Relabel, ShardTrainer

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


class MxnetTrainer(ShardTrainer):
    """Trains one Gluon network on one shard; see `hpcps.training.trainer.Trainer`."""

    def __init__(
        self,
        model: Model,
        facts: Facts,
        train: Train,
        stream: BatchStream,
        *,
        weights: np.random.Generator,
        test: Callable[[], Samples],
        normalise: Normaliser,
        step_seed: Callable[[int], int],
    ) -> None:
        """Build the network and set its weights; the arguments are those of the PyTorch trainer."""
        super().__init__(train, stream, step_seed)
        self._device = prepare_device(train)
        self._model = MxnetFlatModel(model, facts, self._device)
        self._model.draw_weights(weights)
        self._optimizer = build_optimizer(train.optimizer)
        self._read_test = test
        self._test: Samples | None = None
        self._normalise = normalise

    @property
    def layout(self) -> Layout:
        """The trainable tensors."""
        return self._model.layout

    @property
    def device(self) -> str:
        """The device for training."""
        return "cpu" if self._device.device_type == "cpu" else f"cuda:{self._device.device_id}"

    def state(self) -> State:
        """Return a copy of everything that training changes."""
        arrays = {"parameters": self._model.parameters.copy(), "statistics": self.statistics}
        return State(arrays, self._position()).having(optimizer=self._optimizer.state())

    def restore(self, state: State) -> None:
        """Continue from a state."""
        self.copy_from(state.arrays["parameters"])
        self.load_statistics(state.arrays["statistics"])
        self._go_on(state)
        self._optimizer.restore(state.part("optimizer"), self._device)

    def copy_to(self, out: Vector) -> None:
        """Copy the live model into `out`, `[d]`."""
        self._model.parameters.read(out)

    def copy_from(self, values: Vector) -> None:
        """Overwrite the live model with `values`, `[d]`."""
        self._model.parameters.write(values)

    def train(
        self,
        steps: int,
        *,
        anchor: Vector | None = None,
        pull: float = 0.0,
        epoch: int | None = None,
        relabel: Relabel | None = None,
    ) -> Progress:
        """Take optimizer steps on the next batches."""
        centre = None
        if pull:
            assert anchor is not None, "a proximal step needs an anchor"
            centre = nd.array(anchor, ctx=self._device)
        return self._run(steps, lambda: self._step(centre, pull, epoch), relabel)

    def observe(self, steps: int) -> Progress:
        """Run the next batches without optimizer steps; discard the gradients."""
        return self._run(steps, lambda: None)

    def _step(self, centre: Any, pull: float, epoch: int | None) -> None:
        parameters = self._model.parameters.array
        rate = self._rate(epoch)
        self._optimizer.step(parameters, self._model.gradient.array, rate)
        if centre is not None:
            parameters += pull * (centre - parameters)

    def _run(self, steps: int, act: Callable[[], None], relabel: Relabel | None = None) -> Progress:
        outputs: list[Any] = []
        labels: list[Any] = []
        for _ in range(steps):
            images, targets = self._next_batch(relabel)
            if self._model.drops:  # this takes a millisecond
                random.seed(self._step_seed(self._steps_done) % 2**31, self._device)
            outputs.append(self._forward_and_backward(images, targets))
            labels.append(targets)
            act()
            self._steps_done += 1
        counts = Counts()
        for logits, targets in zip(outputs, labels, strict=True):
            count(counts, logits.asnumpy(), targets)
        return Progress(steps, counts.samples, counts.mean_loss, counts.correct)

    def _forward_and_backward(self, images: Any, labels: Any) -> Any:
        """Return the logits; compute the gradient and update the statistics, which MXNet does in the backward pass."""
        with autograd.record():
            logits = self._model.network(nd.array(images, ctx=self._device))
            loss = -nd.pick(nd.log_softmax(logits), nd.array(labels, ctx=self._device)).mean()
        loss.backward()
        return logits

    def loss_on(self, number: int) -> Callable[[Vector], float]:
        """Return a function that computes the loss of models on one batch."""
        images, labels = self._stream.draw(number)

        def loss(values: Vector) -> float:
            live, counts = self._model.parameters.copy(), Counts()
            self._model.parameters.write(values)
            network = self._model.for_inference()
            self._model.parameters.write(live)
            count(counts, network(nd.array(images, ctx=self._device)).asnumpy(), labels)
            return counts.mean_loss

        return loss

    @property
    def evaluator(self) -> None:
        """None: MXNet's engine does not support calls from two threads, so no evaluation runs in the background."""
        return None

    def evaluate(self) -> Evaluation:
        """Evaluate the current model on the test set."""
        if self._test is None:
            self._test = self._read_test()
        network = self._model.for_inference()
        counts = Counts()
        for here in evaluation_slices(len(self._test), self._normalise.shape):
            images = nd.array(self._normalise(self._test.images[here]), ctx=self._device)
            outputs, labels = network(images).asnumpy(), self._test.labels[here]
            count(counts, outputs, labels)
            counts.rank(outputs, labels)
        return counts.evaluation

    @property
    def statistics(self) -> Vector:
        """A copy of the running means and variances, `[k]`."""
        return self._model.statistics.copy()

    def load_statistics(self, values: Vector) -> None:
        """Overwrite the running statistics with `values`, `[k]`."""
        self._model.statistics.write(values)

    def reestimate_statistics(self) -> None:
        """Replace the running statistics by their averages over one pass of the shard."""
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
