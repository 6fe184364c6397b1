"""Evaluates models on the test set: what is counted, and the interface of a network that does it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hpcps.data.batches import Batch, Normaliser, evaluation_slices
from hpcps.data.samples import Labels, Samples
from hpcps.numerics.layout import Vector

_LARGEST_LOSS = 700.0
"""The exponential of a larger one is not finite."""

NEAR = 5
"""How many of the classes with the largest outputs `Evaluation.top5` looks at."""


@dataclass(frozen=True)
class Progress:
    """The result of some steps on the training shard.

    Attributes:
        steps: the number of batches.
        samples: the number of samples in them; of a text, of its bytes.
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
        samples: the number of test samples; of a text, of its bytes.
        loss: mean loss of the samples, as in `Progress`; `inf` if it is not finite.
        accuracy: share classified rightly, 0 to 1; a sample whose outputs are not finite counts as wrong.
        finite: whether all outputs were finite.
        top5: share whose class is among the `NEAR` classes with the largest outputs.
        confusion: the number of samples of each class (row) that were taken for each class (column); the last column
            counts those whose outputs are not finite.
        perplexity: the exponential of the mean loss, of a text; None for other data.
    """

    samples: int
    loss: float
    accuracy: float
    finite: bool
    top5: float
    confusion: tuple[tuple[int, ...], ...]
    perplexity: float | None = None

    def fields(self) -> dict[str, object]:
        """Return what a record says of it; with an evaluator it says more, see `Evaluated`."""
        fields: dict[str, object] = {"accuracy": self.accuracy, "loss": self.loss, "samples": self.samples}
        return fields if self.perplexity is None else fields | {"perplexity": self.perplexity}

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

    def evaluation(self, *, sequential: bool = False) -> Evaluation:
        """Return the result of a test set whose batches were all counted, and ranked.

        Args:
            sequential: whether its samples have a label for each element, so that it has a perplexity.
        """
        assert self._confusion is not None, "a test set has samples"
        accuracy, near = self._correct / self._samples, self._near / self._samples
        confusion = tuple(map(tuple, self._confusion.tolist()))
        perplexity = float(np.exp(min(self.mean_loss, _LARGEST_LOSS))) if sequential else None
        return Evaluation(self._samples, self.mean_loss, accuracy, self._finite, near, confusion, perplexity)


class TestSet:
    """The test set; it is read at the first evaluation.

    Attributes:
        sequential: whether samples have a label for each element; known when the samples are read.
    """

    __test__ = False  # pytest takes its name for that of a test

    def __init__(self, read: Callable[[], Samples], normalise: Normaliser) -> None:
        self._read = read
        self._normalise = normalise
        self._samples: Samples | None = None
        self.sequential = False

    def batches(self) -> Iterator[Batch]:
        """Yield the samples, normalised, and their labels, in batches."""
        if self._samples is None:
            self._samples = self._read()
        labels = self._samples.labels
        self.sequential = labels.ndim > 1
        for here in evaluation_slices(len(labels), self._normalise.shape, labels[0].size):
            yield self._normalise(self._samples.images[here]), labels[here].reshape(-1)


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
        return counts.evaluation(sequential=self._test_set.sequential)

    @abstractmethod
    def _classify(self, images: Vector, labels: Labels, counts: Counts) -> NDArray[np.float32]:
        """Add the counts of a batch; return the outputs of the network, `[b, classes]`."""

    def cancel(self) -> None:
        """Make the current evaluation and all later ones raise `CancelledError`, within one batch."""
        self._cancelled = True

    def _go_on(self) -> None:
        if self._cancelled:
            raise CancelledError
