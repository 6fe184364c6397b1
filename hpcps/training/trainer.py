"""The interface between roles and a training backend: local steps, evaluation, and the model as one flat vector."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hpcps.data.base import Facts
from hpcps.data.batches import Batch, BatchStream, Normaliser, StreamState, evaluation_slices
from hpcps.data.samples import Labels, Samples
from hpcps.models import Model
from hpcps.numerics.layout import Layout, Vector
from hpcps.numerics.state import State
from hpcps.spec.schema import Train
from hpcps.training.schedule import learning_rate

NEAR = 5
"""How many of the classes with the largest outputs `Evaluation.top5` looks at."""

Relabel = Callable[[Labels], Labels]
"""Returns the labels to train on instead of those of a batch `[b]`."""


@dataclass(frozen=True)
class Progress:
    """The result of some steps on the training shard.

    Attributes:
        steps: the number of batches.
        samples: the number of samples in them.
        loss: mean loss of the samples, before each step; `inf` if it is not finite. It is the cross entropy unless the
            network defines another one.
        correct: how many samples were classified rightly, before each step.
    """

    steps: int
    samples: int
    loss: float
    correct: int

    @property
    def accuracy(self) -> float:
        """Share of the samples classified rightly, before each step; 0 without samples."""
        return self.correct / self.samples if self.samples else 0.0


@dataclass(frozen=True)
class Evaluation:
    """The result of a model on the whole test set.

    Attributes:
        samples: the number of test samples.
        loss: mean loss of the samples, as in `Progress`; `inf` if it is not finite.
        accuracy: share classified rightly, 0 to 1; a sample whose outputs are not finite counts as wrong.
        finite: whether all outputs were finite.
        top5: share whose class is among the `NEAR` classes with the largest outputs.
        confusion: the number of samples of each class (row) that were taken for each class (column); the last column
            counts those whose outputs are not finite.
    """

    samples: int
    loss: float
    accuracy: float
    finite: bool
    top5: float
    confusion: tuple[tuple[int, ...], ...]

    @property
    def by_class(self) -> tuple[float | None, ...]:
        """The accuracy of each class; None for a class without samples."""
        return tuple(row[own] / sum(row) if any(row) else None for own, row in enumerate(self.confusion))


class Counts:
    """Counts samples and correct classifications, and sums the loss."""

    def __init__(self) -> None:
        self._samples = 0
        self._correct = 0
        self._finite = True
        self._loss = 0.0
        self._near = 0
        self._confusion: NDArray[np.int64] | None = None

    def add(self, samples: int, correct: int, finite: bool, summed_loss: float) -> None:
        """Add the counts of a batch.

        Args:
            samples: number of samples.
            correct: number of correct classifications; a sample whose outputs are not finite counts as wrong.
            finite: whether all outputs were finite.
            summed_loss: the sum of the losses of the samples.
        """
        self._samples += samples
        self._correct += correct
        self._finite = self._finite and finite
        self._loss += summed_loss

    def rank(self, outputs: NDArray[np.float32], labels: Labels) -> None:
        """Compare the largest outputs of each sample of a batch, `[b, classes]`, with its label, `[b]`."""
        classes = outputs.shape[1]
        if self._confusion is None:
            self._confusion = np.zeros((classes, classes + 1), np.int64)
        good = np.isfinite(outputs).all(1)
        ranked = np.argsort(-outputs, axis=1, kind="stable")[:, :NEAR]
        self._near += int(((ranked == labels[:, None]).any(1) & good).sum())
        np.add.at(self._confusion, (labels, np.where(good, ranked[:, 0], classes)), 1)

    @property
    def mean_loss(self) -> float:
        """The mean loss over the samples so far; infinite if it is not finite."""
        mean = self._loss / max(self._samples, 1)
        return mean if math.isfinite(mean) else math.inf

    def progress(self, steps: int) -> Progress:
        """Return the counts as those of training steps."""
        return Progress(steps, self._samples, self.mean_loss, self._correct)

    def evaluation(self) -> Evaluation:
        """Return the result of a test set whose batches were all counted, and ranked."""
        assert self._confusion is not None, "a test set has samples"
        accuracy, near = self._correct / self._samples, self._near / self._samples
        confusion = tuple(map(tuple, self._confusion.tolist()))
        return Evaluation(self._samples, self.mean_loss, accuracy, self._finite, near, confusion)


class TestSet:
    """The test set; it is read at the first evaluation."""

    __test__ = False  # pytest takes its name for that of a test

    def __init__(self, read: Callable[[], Samples], normalise: Normaliser) -> None:
        self._read = read
        self._normalise = normalise
        self._samples: Samples | None = None

    def batches(self) -> Iterator[Batch]:
        """Yield the samples, normalised, and their labels, in batches."""
        if self._samples is None:
            self._samples = self._read()
        for here in evaluation_slices(len(self._samples), self._normalise.shape):
            yield self._normalise(self._samples.images[here]), self._samples.labels[here]


class CancelledError(Exception):
    """The evaluation was cancelled."""


class Evaluator(ABC):
    """A network that evaluates models on the test set.

    A trainer is one. Its background evaluator is another, with a network like the trainer's on the same device: it runs
    in a thread other than the trainer's, and only in one thread at a time.
    """

    def __init__(self, test_set: TestSet) -> None:
        self._test_set = test_set
        self._cancelled = False

    @abstractmethod
    def copy_from(self, values: Vector) -> None:
        """Overwrite the parameters with `values`, `[d]`; the state of an optimizer stays."""

    @abstractmethod
    def load_statistics(self, values: Vector) -> None:
        """Overwrite the BatchNorm running statistics with `values`, `[k]`."""

    @abstractmethod
    def reestimate_statistics(self) -> None:
        """Replace the running statistics by their averages over one pass of the trainer's shard under these parameters.

        The training stream does not advance.
        """

    def evaluate(self) -> Evaluation:
        """Evaluate the parameters, with the running statistics, on the whole test set.

        Raises:
            CancelledError: `cancel` was called.
        """
        counts = Counts()
        for images, labels in self._test_set.batches():
            self._go_on()
            counts.rank(self._classify(images, labels, counts), labels)
        return counts.evaluation()

    @abstractmethod
    def _classify(self, images: Vector, labels: Labels, counts: Counts) -> NDArray[np.float32]:
        """Add the counts of a batch; return the outputs of the network, `[b, classes]`."""

    def cancel(self) -> None:
        """Make the current evaluation and all later ones raise `CancelledError`, within one batch."""
        self._cancelled = True

    def _go_on(self) -> None:
        if self._cancelled:
            raise CancelledError


class FlatOptimizer(ABC):
    """Updates a flat model with its gradient; keeps state between steps. Arrays are those of the backend."""

    @abstractmethod
    def step(self, parameters: Any, gradient: Any, rate: float) -> None:
        """Take one step in place.

        Args:
            parameters: `[d]`.
            gradient: `[d]`; it may be overwritten.
            rate: the learning rate of this step.
        """

    @abstractmethod
    def state(self) -> State:
        """Return a copy of the state between steps, such as the momentum."""

    @abstractmethod
    def restore(self, state: State, device: Any) -> None:
        """Continue from a state, on the device of the parameters."""


class Trainer(Evaluator):
    """A model, its optimizer and its shard of the data, on some device of some framework.

    Roles get and set the model only as one flat float32 vector `[layout.size]`, by copy; the vector is on the host, or
    on the device of the role's buffers.
    """

    _optimizer: FlatOptimizer

    def __init__(
        self,
        model: Model,
        facts: Facts,
        train: Train,
        stream: BatchStream,
        *,
        weights: np.random.Generator,
        test_set: TestSet,
        step_seed: Callable[[int], int],
    ) -> None:
        """Build the network and set its weights.

        Args:
            model: the network.
            facts: the facts of the data set.
            train: the optimizer, its schedule, threads and device.
            stream: the batches to train on.
            weights: draws the initial weights.
            test_set: the test set.
            step_seed: returns the seed of what the network draws in a step, such as the masks of dropout, from the
                number of steps before it.
        """
        super().__init__(test_set)
        self._train = train
        self._stream = stream
        self._step_seed = step_seed
        self._steps_done = 0
        self._build(model, facts, weights)

    @abstractmethod
    def _build(self, model: Model, facts: Facts, weights: np.random.Generator) -> None:
        """Build the network and the optimizer."""

    @property
    @abstractmethod
    def layout(self) -> Layout:
        """The trainable tensors, in their order in the flat vector."""

    @property
    @abstractmethod
    def device(self) -> str:
        """The device that trains, such as `cpu` or `cuda:0`."""

    @property
    def batch_size(self) -> int:
        """Samples per step."""
        return self._train.batch_size

    @property
    def steps_per_epoch(self) -> int:
        """Full batches in an epoch, which has `train.passes_per_epoch` passes over the shard."""
        return self._train.passes_per_epoch * self._stream.batches_per_epoch

    @property
    def steps_done(self) -> int:
        """Batches consumed by `train` and `observe`; determines the epoch and so the learning rate."""
        return self._steps_done

    @property
    def learning_rate(self) -> float:
        """The learning rate of the next step."""
        return self._rate()

    def state(self) -> State:
        """Return a copy of the training state: parameters, statistics, optimizer state, position in the data."""
        parameters = np.empty(self.layout.size, np.float32)
        self.copy_to(parameters)
        position = {"steps": self._steps_done, "stream": asdict(self._stream.state)}
        state = State({"parameters": parameters, "statistics": self.statistics}, position)
        return state.having(optimizer=self._optimizer_state())

    def restore(self, state: State) -> None:
        """Restore a state; the following steps repeat exactly."""
        self.copy_from(state.arrays["parameters"])
        self.load_statistics(state.arrays["statistics"])
        self._steps_done = state.facts["steps"]
        self._stream.restore(StreamState(**state.facts["stream"]))
        self._restore_optimizer(state.part("optimizer"))

    @abstractmethod
    def _optimizer_state(self) -> State:
        """Return the state of the optimizer, whose vectors have the order of the layout."""

    @abstractmethod
    def _restore_optimizer(self, state: State) -> None:
        """Restore a state that `_optimizer_state` has returned."""

    @abstractmethod
    def copy_to(self, out: Vector) -> None:
        """Copy the live model into `out`, `[d]`."""

    def train(
        self,
        steps: int,
        *,
        anchor: Vector | None = None,
        pull: float = 0.0,
        epoch: int | None = None,
        relabel: Relabel | None = None,
    ) -> Progress:
        """Take optimizer steps on the next batches of the shard.

        Args:
            steps: their number.
            anchor: the centre of the proximal step after every optimizer step, `[d]`: the model x becomes
                (1 - pull) x + pull anchor. Required if `pull` is not 0.
            pull: the weight of the anchor, 0 to 1.
            epoch: the finished epochs for the learning rate's decay; by default the trainer's own.
            relabel: changes the labels of each batch.
        """
        assert anchor is not None or not pull, "a proximal step needs an anchor"
        with self._in_order():
            centre = self._on_device(anchor) if anchor is not None and pull else None
            return self._run(steps, lambda: self._step(self._rate(epoch), centre, pull), relabel)

    def observe(self, steps: int) -> Progress:
        """Run the next batches without stepping; only BatchNorm statistics change."""
        with self._in_order():
            return self._run(steps, None)

    def _in_order(self) -> AbstractContextManager[object]:
        """Return a context in which the device does its work after all work of earlier such contexts."""
        return nullcontext()

    @abstractmethod
    def _on_device(self, values: Vector) -> Any:
        """Return an array of the backend like its parameters with these values, `[d]`."""

    @abstractmethod
    def _step(self, rate: float, centre: Any, pull: float) -> None:
        """Take an optimizer step, and a proximal step if there is a centre."""

    @abstractmethod
    def _run(self, steps: int, act: Callable[[], None] | None, relabel: Relabel | None = None) -> Progress:
        """Run the next batches; call `act` after the gradient of each. Without `act` no gradient is needed."""

    def skip(self, steps: int) -> Progress:
        """Count steps without taking them: they are in vain."""
        self._steps_done += steps
        return Progress(steps, 0, float("inf"), 0)

    @abstractmethod
    def loss_on(self, number: int) -> Callable[[Vector], float]:
        """Return a function that measures models `[d]` on one batch of the shard: it returns the mean loss.

        The batch depends only on the number and is not augmented. The function uses the running statistics, as
        `evaluate` does. The trainer does not change, and its training stream does not advance. The loss is `inf` if it
        is not finite.
        """

    @property
    @abstractmethod
    def evaluator(self) -> Evaluator | None:
        """The background evaluator, created at the first call; None if evaluation needs the trainer itself."""

    @property
    @abstractmethod
    def statistics(self) -> Vector:
        """A copy of the BatchNorm running means and variances, `[k]`; k is 0 for a model without BatchNorm."""

    def _rate(self, epoch: int | None = None) -> float:
        return learning_rate(self._train, self._steps_done, self.steps_per_epoch, epoch)

    def _next_batch(self, relabel: Relabel | None) -> Batch:
        inputs, labels = next(self._stream)
        return inputs, labels if relabel is None else relabel(labels)


def training_fields(trainer: Trainer, seen: Sequence[Progress]) -> dict[str, object]:
    """Return how far a trainer is, and the means over its steps since the last round."""
    samples = sum(progress.samples for progress in seen)
    return {
        "step": trainer.steps_done,
        "epoch": trainer.steps_done / trainer.steps_per_epoch,
        "samples": samples,
        "loss": sum(p.loss * p.samples for p in seen if p.samples) / samples if samples else None,
        "train_accuracy": sum(p.correct for p in seen) / samples if samples else None,
    }
